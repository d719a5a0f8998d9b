//! The verbs of the command line, one module each.

pub mod bench;
pub mod board;
pub mod build;
pub mod check;
pub mod console;
pub mod demo;
pub mod doctor;
pub mod dtb;
pub mod explain;
pub mod fetch;
pub mod fuzz;
pub mod init;
pub mod plan;
pub mod run;
pub mod schema;
pub mod shell;
pub mod show;
pub mod test;

use std::process::ExitCode;

/// How a verb ended; the number is the exit status of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did what was asked.
    Done = 0,
    /// What was asked for failed: a test, a figure above its ceiling, a guest that crashed.
    Failed = 1,
    /// The input is wrong: arguments or description.
    BadInput = 2,
    /// The environment lacks something: a tool, a package, the network.
    Environment = 3,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(outcome as u8)
    }
}
