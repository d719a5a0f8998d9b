//! `bulkhead bench`: what EL2 costs, held against ceilings, goals and other hypervisors. The driver performs it.

use std::path::PathBuf;

/// Measure what the hypervisor costs and compare with the budgets
#[derive(clap::Args)]
#[command(
    after_help = "Figures are counts of EL2 instructions, on QEMU with one instruction a nanosecond: lengths of
paths and not times. Two runs give the same numbers. The budgets are in lab/budgets.toml.
Exit status 1 when a figure is above its ceiling.

Examples:
  bulkhead bench                      # the table
  bulkhead bench --json               # one JSON document
  bulkhead bench --svg figures.svg    # a picture as well
  bulkhead bench --where vtimer_irq   # in which lines of the source the instructions are
  bulkhead bench --profile soak.json  # look for the longest exit in that profile too
  bulkhead bench --publish            # keep them as those of docs/reference/figures.md"
)]
pub struct Args {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// Write a picture of the figures
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Show where the instructions of a figure are
    #[arg(long = "where", value_name = "FIGURE", conflicts_with = "json")]
    pub attribute: Vec<String>,
    /// Take the exits of another run's profile into account
    #[arg(long, value_name = "FILE")]
    pub profile: Vec<PathBuf>,
    /// Keep the figures in lab/figures.toml, from which the book's page is made
    #[arg(long, conflicts_with = "attribute")]
    pub publish: bool,
}
