//! The terminal whose keys a verb takes one by one.

use std::io::{Stdin, stdin};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcsetattr};

/// Ctrl-C, which is a key like others meanwhile.
const INTERRUPT: u8 = 3;

/// A terminal that gives each key at once and shows none. It is as it was before when this goes.
#[derive(Debug)]
pub struct Keys {
    before: Termios,
}

impl Keys {
    /// Takes the keys of the standard input, if that is a terminal. What is printed is broken into lines as before.
    pub fn take() -> Option<Self> {
        Self::with(|raw, before| raw.output_modes = before.output_modes)
    }

    /// The same where what is printed goes out as it is: somebody else has made it for a terminal.
    pub fn take_raw() -> Option<Self> {
        Self::with(|_, _| {})
    }

    fn with(change: impl FnOnce(&mut Termios, &Termios)) -> Option<Self> {
        let input = stdin();
        if !isatty(&input) {
            return None;
        }
        let before = tcgetattr(&input).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        change(&mut raw, &before);
        tcsetattr(&input, OptionalActions::Now, &raw).ok()?;
        Some(Self { before })
    }

    /// Waits at most so long for a key that ends a verb: `q`, or Ctrl-C.
    pub fn ends_within(&self, timeout: Duration) -> bool {
        let input: Stdin = stdin();
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(left_now) = Timespec::try_from(left) else {
                return false;
            };
            let mut fds = [PollFd::new(&input, PollFlags::IN)];
            match poll(&mut fds, Some(&left_now)) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return false,
            }
            let mut key = [0];
            match rustix::io::read(&input, &mut key) {
                // A terminal that has gone.
                Ok(0) | Err(_) => return true,
                Ok(_) if key == [b'q'] || key == [INTERRUPT] => return true,
                Ok(_) => {}
            }
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // One that has gone needs nothing.
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}
