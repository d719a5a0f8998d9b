//! Tools for those who work on Bulkhead: tests of everything that is claimed, figures, fuzzing, the book. Not in the
//! user's tool.
#![forbid(unsafe_code)]

pub mod bench;
pub mod book;
pub mod fuzzing;
pub mod interference;
pub mod mutants;
pub mod testing;
mod verbs;

use bulkhead_cli::cmd::{Cli, Verb};
use bulkhead_model::failure::Outcome;

/// Does what the command line asks for: what the user's tool leaves to this one, and all of its own verbs.
pub fn perform(cli: Cli) -> Outcome {
    match cli.verb {
        Verb::Bench(args) => verbs::bench::run(args),
        Verb::Book(args) => verbs::book::run(args),
        Verb::Fuzz(args) => verbs::fuzz::run(args),
        Verb::Interference(args) => verbs::interference::run(args),
        Verb::Mutants(args) => verbs::mutants::run(args),
        Verb::Test(args) => verbs::test::run(args),
        _ => cli.perform(),
    }
}
