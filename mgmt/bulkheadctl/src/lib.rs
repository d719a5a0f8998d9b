//! `bulkheadctl`: manages the VMs of a board from the VM that may, through EL2's control port or `bulkheadd`.
#![forbid(unsafe_code)]

pub mod cli;
mod console;
mod doctor;
mod dump;
mod events;
mod limits;
mod logs;
mod output;
mod policy;
mod report;
mod sample;
mod shell;
mod stats;
mod table;
mod terminal;
mod top;
mod verb;
mod vms;

pub use shell::{complete, pages};

use bulkhead_abi::control::Kind;
use bulkhead_control::words;

use cli::{Cli, Verb};
use output::Printer;
use verb::Stop;

/// Status of a program that SIGPIPE ends, as a shell has it: nobody reads the output any more.
pub const UNREAD: u8 = 128 + 13;

/// Does what the command line asks for; gives the exit status.
pub fn run(cli: Cli) -> u8 {
    let printer = Printer::new(cli.json);
    let access = cli.access();
    let done = match cli.verb {
        Verb::List => vms::list(&access, &printer),
        Verb::Start(args) => vms::order(&access, &printer, Kind::Start, args),
        Verb::Stop(args) => vms::stop(&access, &printer, args),
        Verb::Restart(args) => vms::order(&access, &printer, Kind::Restart, args),
        Verb::Pause(args) => vms::order(&access, &printer, Kind::Pause, args.into()),
        Verb::Resume(args) => vms::order(&access, &printer, Kind::Resume, args.into()),
        Verb::Stats(args) => stats::run(&access, &printer, args),
        Verb::Weights(args) => limits::weights(&access, &printer, args),
        Verb::Caps(args) => limits::caps(&access, &printer, args),
        Verb::Budgets(args) => limits::budgets(&access, &printer, args),
        Verb::Pools(args) => limits::pools(&access, &printer, args),
        Verb::Events(args) => events::run(&access, &printer, args),
        Verb::Dump(args) => dump::run(&access, &printer, args),
        Verb::Report(args) => report::run(&access, &printer, args),
        Verb::Console(args) => console::run(&access, args),
        Verb::Logs(args) => logs::run(&access, &printer, args),
        Verb::Top(args) => top::run(&access, &printer, args),
        Verb::Policy(args) => policy::run(&access, &printer, args),
        Verb::Doctor => doctor::run(&access, &printer),
        Verb::Completions(args) => shell::print_completions(&printer, args),
        Verb::Man(args) => shell::write_pages(&printer, args),
    };
    match done {
        Ok(outcome) => outcome as u8,
        Err(Stop::Failure(failure)) => {
            printer.failure(&failure);
            failure.outcome as u8
        }
        Err(Stop::Unread) => UNREAD,
    }
}
