//! `bulkhead`: hands each verb of the command line to its module.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use bulkhead_cli::cmd::Cli;

fn main() -> ExitCode {
    bulkhead_cli::start(Cli::perform)
}
