//! The program; its library does all.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    ExitCode::from(bulkheadctl::run(bulkheadctl::cli::Cli::parse()))
}
