//! The user's terminal in raw mode, and back.

use std::io::{self, IsTerminal};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// Whether keys can be read and pictures drawn: input and output are both a terminal.
pub fn is_terminal() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Keys come one by one and unechoed, Ctrl-C and its kin included, until this is dropped (which also
/// happens when the tool panics).
#[derive(Debug)]
pub struct RawMode {
    before: Termios,
}

impl RawMode {
    /// Switches the terminal on standard input.
    ///
    /// # Errors
    ///
    /// It is not a terminal, or has been hung up.
    pub fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        // Output stays as it was, so that the tool's own lines need no carriage returns.
        raw.output_modes = before.output_modes;
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // If the terminal has gone there is nothing to restore. Flushing drops keys meant for the
        // guest that would otherwise be typed into the user's shell.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.before);
    }
}
