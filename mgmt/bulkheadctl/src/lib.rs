//! `bulkheadctl`: manages the VMs of a board from the VM that may, through EL2's control port or `bulkheadd`.
#![forbid(unsafe_code)]

pub mod cli;
mod doctor;
mod events;
mod limits;
mod output;
mod sample;
mod shell;
mod stats;
mod table;
mod top;
mod vms;
mod words;

pub use shell::{complete, pages};

use std::fs::File;
use std::io;

use bulkhead_control::failure::{Failure, Outcome};
use bulkhead_control::manager::Manager;
use bulkhead_control::port::Places;

use cli::{Cli, Verb};
use output::{Broken, Printer};

/// Connects, and greets EL2.
fn connect(places: &Places) -> Result<Manager<File>, Failure> {
    let (connection, _) = places.connect()?;
    Manager::greet(connection)
}

/// Status of a program that SIGPIPE ends, as a shell has it: nobody reads the output any more.
pub const UNREAD: u8 = 128 + 13;

/// Does what the command line asks for; gives the exit status.
pub fn run(cli: Cli) -> u8 {
    let printer = Printer::new(cli.json);
    let places = cli.places();
    let done = match cli.verb {
        Verb::List => vms::list(&places, &printer),
        Verb::Start(args) => {
            vms::order(&places, &printer, bulkhead_abi::control::Kind::Start, args)
        }
        Verb::Stop(args) => vms::order(&places, &printer, bulkhead_abi::control::Kind::Stop, args),
        Verb::Restart(args) => vms::order(
            &places,
            &printer,
            bulkhead_abi::control::Kind::Restart,
            args,
        ),
        Verb::Pause(args) => vms::order(
            &places,
            &printer,
            bulkhead_abi::control::Kind::Pause,
            args.into(),
        ),
        Verb::Resume(args) => vms::order(
            &places,
            &printer,
            bulkhead_abi::control::Kind::Resume,
            args.into(),
        ),
        Verb::Stats(args) => stats::run(&places, &printer, args),
        Verb::Weights(args) => limits::weights(&places, &printer, args),
        Verb::Caps(args) => limits::caps(&places, &printer, args),
        Verb::Budgets(args) => limits::budgets(&places, &printer, args),
        Verb::Pools(args) => limits::pools(&places, &printer, args),
        Verb::Events(args) => events::run(&places, &printer, args),
        Verb::Top(args) => top::run(&places, &printer, args),
        Verb::Doctor => doctor::run(&places, &printer),
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

/// Why a verb stops.
#[derive(Debug)]
enum Stop {
    /// It failed.
    Failure(Failure),
    /// Nobody reads its output any more.
    Unread,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<Broken> for Stop {
    fn from(Broken(error): Broken) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::Unread;
        }
        Self::Failure(Failure::environment("control::io", "cannot print", error))
    }
}

/// How a verb ends.
type Ended = Result<Outcome, Stop>;
