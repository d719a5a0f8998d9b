//! What a process of the tool does around its verb: signals, and output that nobody reads.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

use clap::Parser;

use bulkhead_model::failure::Outcome;
use bulkhead_runner::temp_files;

use crate::cmd::Cli;

/// Reads the command line and has `perform` do what it asks for.
pub fn start(perform: impl FnOnce(Cli) -> Outcome) -> ExitCode {
    let cli = Cli::parse();
    temp_files::watch();
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !is_unread(panic.payload()) {
            usual(panic);
        }
    }));
    match panic::catch_unwind(AssertUnwindSafe(|| perform(cli))) {
        Ok(outcome) => outcome.into(),
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
