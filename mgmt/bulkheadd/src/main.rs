//! The program; its library does all.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use bulkhead_control::failure::Outcome;
use clap::Parser;

fn main() -> ExitCode {
    match bulkheadd::run(&bulkheadd::cli::Cli::parse()) {
        Ok(()) => Outcome::Done.into(),
        Err(failure) => {
            eprintln!("{failure}");
            failure.outcome.into()
        }
    }
}
