//! The program; its library does all.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use bulkhead_control::failure::Outcome;
use clap::Parser;

fn main() -> ExitCode {
    match bulkheadd::run(&bulkheadd::cli::Cli::parse()) {
        Ok(()) => Outcome::Done.into(),
        Err(failures) => {
            for failure in &failures {
                eprintln!("{failure}");
            }
            let first = failures.first().map(|failure| failure.outcome);
            first.unwrap_or(Outcome::Failed).into()
        }
    }
}
