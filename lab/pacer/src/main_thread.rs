//! QEMU's main thread: is it asleep?

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

/// Numbers of the system calls in which QEMU's main loop waits for something to do: ppoll, and poll where there is one
/// (Linux, `asm/unistd.h`).
const WAITS: [u32; 2] = if cfg!(target_arch = "x86_64") {
    [271, 7]
} else {
    [73, 73]
};

/// The number of futex, in which it waits for a lock.
const LOCKS: u32 = if cfg!(target_arch = "x86_64") {
    202
} else {
    98
};

/// A main thread that has waited so long elsewhere waits for a CPU: to stop, for a debugger or at the end.
const ELSEWHERE: Duration = Duration::from_millis(100);

/// Activity of a thread, as the kernel tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// It runs, or could.
    Runs,
    /// It sleeps until there is something to do.
    Sleeps,
    /// It waits for a lock.
    Locked,
    /// It sleeps in another system call, or until a page is there.
    Elsewhere,
}

impl Doing {
    /// Reads it from `/proc/PID/task/TID/syscall` (proc_pid_syscall(5)).
    fn parse(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let word = text.split_ascii_whitespace().next().unwrap_or_default();
        match word.parse() {
            Ok(number) if WAITS.contains(&number) => Self::Sleeps,
            Ok(LOCKS) => Self::Locked,
            _ if word == "running" => Self::Runs,
            _ => Self::Elsewhere,
        }
    }
}

/// The main thread of this process.
#[derive(Debug)]
pub struct MainThread {
    doing: File,
}

impl MainThread {
    /// Returns that of this process.
    ///
    /// # Errors
    ///
    /// Message to the user: the kernel does not tell what the thread does.
    pub fn new() -> Result<Self, String> {
        // The first thread of a process has its number.
        let path = format!("/proc/self/task/{}/syscall", std::process::id());
        let new = || {
            let main = Self {
                doing: File::open(&path)?,
            };
            main.doing().map(|_| main)
        };
        new().map_err(|why| format!("a run depends on the host's load: can't read {path}: {why}"))
    }

    fn doing(&self) -> std::io::Result<Doing> {
        let mut text = [0; 32];
        let length = self.doing.read_at(&mut text, 0)?;
        Ok(Doing::parse(&text[..length]))
    }

    /// Waits until it sleeps, having done whatever it was woken for: then returns `true`. Or until it waits for a lock, which this
    /// thread may have.
    pub fn settles(&self) -> bool {
        self.waits_until(|doing| doing != Doing::Runs && doing != Doing::Elsewhere)
    }

    /// Waits until it sleeps, and has done whatever it was woken for before.
    pub fn wait(&self) {
        self.waits_until(|doing| doing == Doing::Sleeps);
    }

    /// Returns whether it sleeps in the end.
    fn waits_until(&self, is_enough: impl Fn(Doing) -> bool) -> bool {
        let mut elsewhere: Option<Instant> = None;
        for look in 0_u32.. {
            let Ok(doing) = self.doing() else {
                return true;
            };
            if is_enough(doing) {
                return doing == Doing::Sleeps;
            }
            if doing == Doing::Runs {
                elsewhere = None;
            } else if elsewhere.get_or_insert_with(Instant::now).elapsed() > ELSEWHERE {
                return false;
            }
            pause(look);
        }
        false
    }
}

/// Between two looks.
fn pause(look: u32) {
    match look {
        0..20 => thread::yield_now(),
        _ => thread::sleep(Duration::from_micros(20)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_thread_in_poll_has_nothing_to_do() {
        let poll = format!("{} 0x7ffd 0x1 0x0 0x0 0x8 0x0 0x7ffd 0x7f\n", WAITS[0]);
        assert_eq!(Doing::parse(poll.as_bytes()), Doing::Sleeps);
        assert_eq!(Doing::parse(b"running\n"), Doing::Runs);
        let lock = format!("{LOCKS} 0x0 0x80");
        assert_eq!(Doing::parse(lock.as_bytes()), Doing::Locked);
        assert_eq!(Doing::parse(b"17 0x0 0x80"), Doing::Elsewhere);
        assert_eq!(Doing::parse(b"-1 0x0 0x80"), Doing::Elsewhere);
        assert_eq!(Doing::parse(b""), Doing::Elsewhere);
    }
}
