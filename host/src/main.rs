//! `bulkhead`: hands each verb of the command line to its module.
#![forbid(unsafe_code)]

use std::io::{stderr, stdout};
use std::panic;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bulkhead_host::cmd::Cli;
use bulkhead_host::leftovers;
use clap::Parser;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::SIGPIPE;
use signal_hook::flag;

fn main() -> ExitCode {
    let line = Cli::parse();
    leftovers::watch();
    let broken = Arc::new(AtomicBool::new(false));
    // Where that fails, a reader that stops makes the tool end as by a bug of its own.
    let _ = flag::register(SIGPIPE, Arc::clone(&broken));
    let usual = panic::take_hook();
    let seen = Arc::clone(&broken);
    panic::set_hook(Box::new(move |panic| {
        if !is_unread(&seen) {
            usual(panic);
        }
    }));
    match panic::catch_unwind(|| line.perform()) {
        Ok(outcome) => outcome.into(),
        Err(_) if is_unread(&broken) => ExitCode::from(UNREAD),
        Err(payload) => panic::resume_unwind(payload),
    }
}

/// Status of a program that SIGPIPE ends, as a shell has it.
const UNREAD: u8 = 128 + SIGPIPE as u8;

/// Whether a panic is that of `println!` because nobody reads the output any more (`bulkhead plan |
/// head`): SIGPIPE has come, and one of the outputs is a pipe without a reader. SIGPIPE alone may also
/// be about a program that the tool has started, which is no reason to end; its default action would
/// end the tool at once and leave behind what is temporary, which unwinding puts away.
fn is_unread(broken: &AtomicBool) -> bool {
    let (stdout, stderr) = (stdout(), stderr());
    let mut outputs = [
        PollFd::new(&stdout, PollFlags::empty()),
        PollFd::new(&stderr, PollFlags::empty()),
    ];
    broken.load(Ordering::SeqCst)
        && poll(&mut outputs, Some(&Timespec::default())).is_ok()
        && outputs
            .iter()
            .any(|output| output.revents().contains(PollFlags::ERR))
}
