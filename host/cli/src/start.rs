//! Process of the tool around its verb: signals, and output without a reader.

use std::io::{stderr, stdout};
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::SIGPIPE;
use signal_hook::flag;

use bulkhead_model::failure::Outcome;
use bulkhead_runner::temp_files;

use crate::cmd::Cli;

/// Reads the command line and has `perform` do what it asks for.
pub fn start(perform: impl FnOnce(Cli) -> Outcome) -> ExitCode {
    let cli = Cli::parse();
    temp_files::watch();
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
    match panic::catch_unwind(AssertUnwindSafe(|| perform(cli))) {
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
