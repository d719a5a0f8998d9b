//! `bulkhead`: hands each verb of the command line to its module.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use bulkhead_host::cmd;
use clap::{CommandFactory, Parser, Subcommand};

/// Describe, check, build, run and measure a Bulkhead system.
#[derive(Parser)]
#[command(
    name = "bulkhead",
    version,
    about,
    after_help = "Exit status: 0 done; 1 what was asked for failed; 2 wrong input; 3 the environment lacks something."
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// One variant for each verb; the arguments live in the module of the verb.
#[derive(Subcommand)]
enum Verb {
    Check(cmd::check::Args),
    Plan(cmd::plan::Args),
    Dtb(cmd::dtb::Args),
    Build(cmd::build::Args),
    Bench(cmd::bench::Args),
    Run(cmd::run::Args),
    Console(cmd::console::Args),
    Demo(cmd::demo::Args),
    Test(cmd::test::Args),
    Fuzz(cmd::fuzz::Args),
    Fetch(cmd::fetch::Args),
    Doctor(cmd::doctor::Args),
    Completions(cmd::shell::Completions),
    Man(cmd::shell::Pages),
}

fn main() -> ExitCode {
    match Cli::parse().verb {
        Verb::Check(args) => cmd::check::run(args),
        Verb::Plan(args) => cmd::plan::run(args),
        Verb::Dtb(args) => cmd::dtb::run(args),
        Verb::Build(args) => cmd::build::run(args),
        Verb::Bench(args) => cmd::bench::run(args),
        Verb::Run(args) => cmd::run::run(args),
        Verb::Console(args) => cmd::console::run(args),
        Verb::Demo(args) => cmd::demo::run(args),
        Verb::Test(args) => cmd::test::run(args),
        Verb::Fuzz(args) => cmd::fuzz::run(args),
        Verb::Fetch(args) => cmd::fetch::run(args),
        Verb::Doctor(args) => cmd::doctor::run(args),
        Verb::Completions(args) => cmd::shell::completions(args, Cli::command()),
        Verb::Man(args) => cmd::shell::pages(args, Cli::command()),
    }
    .into()
}
