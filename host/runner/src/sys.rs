//! The host tool's only `unsafe` code: what the standard library leaves to the caller's care.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{
    Signal, getpid, getppid, ioctl_tiocsctty, set_parent_process_death_signal, setsid,
};
use rustix::stdio::stdin;

/// Makes the child die with the thread that starts it, however that ends: a killed tool leaves no
/// emulator behind. The starting thread must therefore live as long as the child is wanted.
pub fn die_with_parent(command: &mut Command) -> &mut Command {
    let parent = getpid();
    let arm = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have gone before the signal was armed; then nobody would send it.
        if getppid() != Some(parent) {
            return Err(io::Error::other("the parent process has ended"));
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe functions may run. The closure makes two
    // system calls, and the error of its last branch is of a constant kind that is made there only
    // when the child is about to give up.
    unsafe { command.pre_exec(arm) }
}

/// Gives the child the terminal on its standard input for its own, as a shell has it: keys such as Ctrl-C signal the child.
pub fn own_terminal(command: &mut Command) -> &mut Command {
    let arm = || {
        setsid()?;
        ioctl_tiocsctty(stdin())?;
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe functions may run. These are two system calls; `stdin` is no more
    // than the number of a descriptor (that of the standard library allocates).
    unsafe { command.pre_exec(arm) }
}
