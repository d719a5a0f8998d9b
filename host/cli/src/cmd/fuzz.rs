//! `bulkhead fuzz`: looks for inputs that break what a guest, a firmware or a file can reach. The driver performs it.

use std::path::PathBuf;

/// Look for inputs that break what others can reach
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead fuzz                           # every target, as many inputs as `bulkhead test` tries
  bulkhead fuzz --minutes 60              # every target, an hour each
  bulkhead fuzz plan --runs 1000000       # one target, so many inputs
  bulkhead fuzz plan --replay out/fuzz/plan/crash-0123456789abcdef
  bulkhead fuzz --list                    # what each target proves

What is worth keeping stays in out/fuzz/TARGET and the next search starts from it. Exit status: 0 nothing
found, 1 found, 2 there is no such target or file.")]
pub struct Args {
    /// Target; all if none is named
    pub target: Option<String>,
    /// Try so many inputs of each target
    #[arg(long, conflicts_with = "minutes", value_name = "N")]
    pub runs: Option<u64>,
    /// Search each target for so many minutes
    #[arg(long, value_name = "N")]
    pub minutes: Option<u64>,
    /// Where the random numbers start
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Try this input again
    #[arg(long, value_name = "FILE", requires = "target", conflicts_with_all = ["runs", "minutes"])]
    pub replay: Option<PathBuf>,
    /// Print the targets and what each proves, run nothing
    #[arg(long)]
    pub list: bool,
}
