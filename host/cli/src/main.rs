//! `bulkhead`: hands each verb of the command line to its module.
#![forbid(unsafe_code)]

use std::any::Any;
use std::panic;
use std::process::ExitCode;

use bulkhead_host::cmd::Cli;
use bulkhead_host::leftovers;
use clap::Parser;

fn main() -> ExitCode {
    let line = Cli::parse();
    leftovers::watch();
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !is_unread(panic.payload()) {
            usual(panic);
        }
    }));
    match panic::catch_unwind(|| line.perform()) {
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
