//! `bulkhead bench`: what EL2 costs, held against ceilings, goals and other hypervisors.

use std::io::{IsTerminal, stdout};
use std::path::PathBuf;

use super::Outcome;
use crate::bench::{self, Figure, Measurement, read_profile};
use crate::failure::Failure;
use crate::leftovers;

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
  bulkhead bench --profile soak.json  # look for the longest exit in that profile too"
)]
pub struct Args {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Write a picture of the figures
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Show where the instructions of a figure are
    #[arg(long = "where", value_name = "FIGURE", conflicts_with = "json")]
    whence: Vec<String>,
    /// Take the exits of another run's profile into account
    #[arg(long, value_name = "FILE")]
    profile: Vec<PathBuf>,
}

/// The JSON document.
#[derive(serde::Serialize)]
struct Document<'a> {
    figures: &'a [Figure],
}

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    match measure(&args) {
        Ok(measurement) if measurement.holds() => Outcome::Done,
        Ok(_) => Outcome::Failed,
        Err(failure) => failure.report(),
    }
}

/// Measures and shows.
fn measure(args: &Args) -> Result<Measurement, Failure> {
    let others = args
        .profile
        .iter()
        .map(|path| read_profile(path))
        .collect::<Result<Vec<_>, _>>()?;
    let measurement = bench::measure(&others, args.whence.is_empty())?;
    let figures = &measurement.figures;
    if let Some(path) = &args.svg {
        leftovers::write(path, bench::svg(figures).as_bytes()).map_err(|error| {
            Failure::environment(format!("cannot write {}", path.display()), error, "")
        })?;
    }
    if args.json {
        let text = serde_json::to_string_pretty(&Document { figures })
            .map_err(|error| Failure::failed("the figures make no JSON", error, ""))?;
        println!("{text}");
        return Ok(measurement);
    }
    let colours = stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    print!("{}", bench::table(figures, colours));
    for name in &args.whence {
        print!(
            "\n{}",
            bench::whence(&measurement.profile, &measurement.el2, name)?
        );
    }
    Ok(measurement)
}
