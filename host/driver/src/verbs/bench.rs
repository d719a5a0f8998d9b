//! `bulkhead bench`: what EL2 costs, held against ceilings, goals and other hypervisors.

use std::io::{IsTerminal, stdout};
use std::process::Command;

use bulkhead_cli::cmd::bench::Args;
use bulkhead_model::checkout;
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
    if !args.attribute.is_empty() && !args.json && !args.publish && args.svg.is_none() {
        match bench::attribute_alone(&args.attribute) {
            Ok(None) => {}
            Ok(Some(text)) => {
                print!("{text}");
                return Outcome::Done;
            }
            Err(failure) => return failure.report(),
        }
    }
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
    let realtime = match args.attribute.is_empty() {
        true => bench::Extent::All,
        false => bench::Extent::Nothing,
    };
    let measurement = bench::measure(&others, realtime)?;
    let figures = &measurement.figures;
    if let Some(path) = &args.svg {
        temp_files::write(path, bench::svg(figures).as_bytes()).map_err(|error| {
            Failure::environment(format!("cannot write {}", path.display()), error, "")
        })?;
    }
    if args.publish {
        publish(figures)?;
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
        print!("\n{}", bench::attribute(&measurement, name)?);
    }
    Ok(measurement)
}

/// Keeps the figures of this commit as the published ones.
fn publish(figures: &[Figure]) -> Result<(), Failure> {
    let root = checkout::root();
    let mut git = Command::new("git");
    git.args(["rev-parse", "--short", "HEAD"])
        .current_dir(&root);
    let commit = match git.output() {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => {
            return Err(Failure::environment(
                "git does not say which commit this is",
                "",
                "",
            ));
        }
    };
    let text = bench::Published::load()?.with(commit, figures).text()?;
    let path = root.join(bench::PUBLISHED);
    temp_files::write(&path, text.as_bytes()).map_err(|error| {
        Failure::environment(format!("cannot write {}", path.display()), error, "")
    })
}
