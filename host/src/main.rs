//! `bulkhead`: hands each verb of the command line to its module.
#![forbid(unsafe_code)]

use std::any::Any;
use std::panic;
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
    Explain(cmd::explain::Args),
    Schema(cmd::schema::Args),
    Plan(cmd::plan::Args),
    Dtb(cmd::dtb::Args),
    Board(cmd::board::Args),
    Init(cmd::init::Args),
    Build(cmd::build::Args),
    Bench(cmd::bench::Args),
    Run(cmd::run::Args),
    Show(cmd::show::Args),
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
    let verb = Cli::parse().verb;
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !is_unread(panic.payload()) {
            usual(panic);
        }
    }));
    match panic::catch_unwind(|| perform(verb)) {
        Ok(status) => status,
        Err(payload) if is_unread(&*payload) => ExitCode::from(UNREAD),
        Err(payload) => panic::resume_unwind(payload),
    }
}

/// Status of a program that SIGPIPE ends, as a shell has it.
const UNREAD: u8 = 128 + 13;

/// Nobody reads the output any more (`bulkhead plan | head`), for which `println!` panics. What runs is still put away.
fn is_unread(payload: &(dyn Any + Send)) -> bool {
    payload.downcast_ref::<String>().is_some_and(|text| {
        text.starts_with("failed printing to std") && text.ends_with("(os error 32)")
    })
}

fn perform(verb: Verb) -> ExitCode {
    match verb {
        Verb::Check(args) => cmd::check::run(args),
        Verb::Explain(args) => cmd::explain::run(args),
        Verb::Schema(args) => cmd::schema::run(args),
        Verb::Plan(args) => cmd::plan::run(args),
        Verb::Dtb(args) => cmd::dtb::run(args),
        Verb::Board(args) => cmd::board::run(args),
        Verb::Init(args) => cmd::init::run(args),
        Verb::Build(args) => cmd::build::run(args),
        Verb::Bench(args) => cmd::bench::run(args),
        Verb::Run(args) => cmd::run::run(args),
        Verb::Show(args) => cmd::show::run(args),
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
