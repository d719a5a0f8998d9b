//! The verbs of the command line, one module each.

pub mod bench;
pub mod board;
pub mod book;
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

use clap::{CommandFactory, Parser, Subcommand};

/// Describe, check, build, run and measure a Bulkhead system.
#[derive(Parser)]
#[command(
    name = "bulkhead",
    version,
    about,
    after_help = "Exit status: 0 done; 1 what was asked for failed; 2 wrong input; 3 the environment lacks something."
)]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// One variant for each verb; the arguments live in the module of the verb.
#[derive(Subcommand)]
enum Verb {
    Check(check::Args),
    Explain(explain::Args),
    Schema(schema::Args),
    Plan(plan::Args),
    Dtb(dtb::Args),
    Board(board::Args),
    Init(init::Args),
    Build(build::Args),
    Bench(bench::Args),
    Run(run::Args),
    Show(show::Args),
    Console(console::Args),
    Demo(demo::Args),
    Test(test::Args),
    Fuzz(fuzz::Args),
    Fetch(fetch::Args),
    Doctor(doctor::Args),
    Book(book::Args),
    Completions(shell::Completions),
    Man(shell::Pages),
}

impl Cli {
    /// Does what the command line asks for.
    pub fn perform(self) -> Outcome {
        match self.verb {
            Verb::Check(args) => check::run(args),
            Verb::Explain(args) => explain::run(args),
            Verb::Schema(args) => schema::run(args),
            Verb::Plan(args) => plan::run(args),
            Verb::Dtb(args) => dtb::run(args),
            Verb::Board(args) => board::run(args),
            Verb::Book(args) => book::run(args),
            Verb::Init(args) => init::run(args),
            Verb::Build(args) => build::run(args),
            Verb::Bench(args) => bench::run(args),
            Verb::Run(args) => run::run(args),
            Verb::Show(args) => show::run(args),
            Verb::Console(args) => console::run(args),
            Verb::Demo(args) => demo::run(args),
            Verb::Test(args) => test::run(args),
            Verb::Fuzz(args) => fuzz::run(args),
            Verb::Fetch(args) => fetch::run(args),
            Verb::Doctor(args) => doctor::run(args),
            Verb::Completions(args) => shell::completions(args, Self::command()),
            Verb::Man(args) => shell::pages(args, Self::command()),
        }
    }
}

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
