//! `bulkhead-driver`: the user's tool with the verbs of those who work on Bulkhead.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    bulkhead_cli::start(bulkhead_driver::perform)
}
