//! Running a system: the emulator as a child process, the terminal, the console and those who attach
//! to it.

pub mod attach;
pub mod console;
mod debugger;
mod emulator;
pub mod gdb;
mod keys;
mod logs;
mod qemu;
pub mod recording;
mod session;
mod summary;
mod system;
mod terminal;

pub use debugger::Debugger;
pub use emulator::{Emulator, Output, Usage};
pub use keys::{Action, ESCAPE, Keys};
pub use logs::Logs;
pub use qemu::{Clock, Qemu, Source, Start, program};
pub use session::{End, Flow, Options, View, session};
pub use summary::RunSummary;
pub use system::System;
pub use terminal::{RawMode, is_terminal};
