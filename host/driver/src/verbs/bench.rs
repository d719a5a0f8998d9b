//! `bulkhead bench`: what EL2 costs, held against ceilings, goals and other hypervisors.

use std::io::{IsTerminal, stdout};

use bulkhead_cli::cmd::bench::Args;
use bulkhead_model::failure::{Failure, Outcome};
use bulkhead_runner::profile::read_profile;
use bulkhead_runner::temp_files;

use crate::bench::{self, Figure, Measurement};

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
    let measurement = bench::measure(&others, args.attribute.is_empty())?;
    let figures = &measurement.figures;
    if let Some(path) = &args.svg {
        temp_files::write(path, bench::svg(figures).as_bytes()).map_err(|error| {
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
    for name in &args.attribute {
        print!(
            "\n{}",
            bench::attribute(&measurement.profile, &measurement.el2, name)?
        );
    }
    Ok(measurement)
}
