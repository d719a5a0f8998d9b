//! The emulator as a child process whose standard streams are the board's UART.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use rustix::pipe::fcntl_setpipe_size;

use bulkhead_model::failure::Failure;

use crate::sys;

/// Result of one read of the console.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// So many bytes came.
    Bytes(usize),
    /// Nothing came in time.
    Silence,
    /// The console is closed: the emulator has ended or is about to.
    Closed,
}

/// Use of the host by an emulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// CPU time of its threads that have not ended.
    pub cpu_time: Duration,
    /// None of its threads runs, or would if the host had a CPU for it.
    pub asleep: bool,
}

/// Ticks of a second in files of `/proc` (Linux shows them so on every architecture that this tool runs on).
const TICKS: u64 = 100;

/// CPU time in ticks, user's and system's, and whether a thread sleeps, from its `stat` (proc(5)).
fn stat_of_thread(stat: &str) -> Option<(u64, bool)> {
    // Its name stands in brackets and may have any characters.
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let asleep = matches!(*fields.first()?, "S" | "I" | "Z" | "X");
    Some((number(11)? + number(12)?, asleep))
}

/// A running emulator. Dropping it kills it.
#[derive(Debug)]
pub struct Emulator {
    child: Child,
    keys: Option<ChildStdin>,
    console: ChildStdout,
    messages: File,
    unsent: Vec<u8>,
}

impl Emulator {
    /// Keys beyond this number that the board has not taken are dropped.
    const MOST_UNSENT: usize = 1 << 20;
    /// Bytes that the console holds while nobody reads it.
    const PAGES: usize = 8192;
    /// CPU time in which it could have written a byte.
    const JAM: Duration = Duration::from_millis(200);
    /// Time of the host after which [`Emulator::jam`] gives up.
    const JAM_GUARD: Duration = Duration::from_secs(60);

    /// Starts it. The calling thread must outlive the emulator, which dies with it.
    ///
    /// # Errors
    ///
    /// The program is missing or cannot be started.
    pub fn start(mut command: Command) -> Result<Self, Failure> {
        let program = command.get_program().to_string_lossy().into_owned();
        let advice = match program.contains("qemu") {
            true => {
                "install QEMU: `apt install qemu-system-arm`, or run `./bulkhead`, which does it"
            }
            false => "",
        };
        let failed = |error: io::Error| {
            Failure::environment(format!("cannot start `{program}`"), error, advice)
        };
        let messages = tempfile::tempfile().map_err(failed)?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(messages.try_clone().map_err(failed)?);
        let mut child = sys::die_with_parent(&mut command).spawn().map_err(failed)?;
        let (Some(keys), Some(console)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both streams were asked for")
        };
        let emulator = Self {
            child,
            keys: Some(keys),
            console,
            messages,
            unsent: Vec::new(),
        };
        // A board that takes no input must not block the tool.
        let nonblocking = emulator
            .keys
            .as_ref()
            .map(|keys| rustix::io::ioctl_fionbio(keys, true));
        nonblocking
            .transpose()
            .map_err(|error| failed(error.into()))?;
        Ok(emulator)
    }

    /// The console, for [`poll`].
    pub fn console(&self) -> BorrowedFd<'_> {
        self.console.as_fd()
    }

    /// The stream of keys, for [`poll`], if some wait to be taken.
    pub fn blocked_keys(&self) -> Option<BorrowedFd<'_>> {
        let keys = self.keys.as_ref().filter(|_| !self.unsent.is_empty())?;
        Some(keys.as_fd())
    }

    /// Waits for output at most so long, and reads it.
    ///
    /// # Errors
    ///
    /// The system call's, except for interruption by a signal, which counts as silence.
    pub fn read(&mut self, buffer: &mut [u8], wait: Duration) -> io::Result<Output> {
        let mut fds = [PollFd::new(&self.console, PollFlags::IN)];
        match poll(&mut fds, Some(&timespec(wait))) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(Output::Silence),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        match self.console.read(buffer) {
            Ok(0) => Ok(Output::Closed),
            Ok(n) => Ok(Output::Bytes(n)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Output::Silence),
            Err(error) => Err(error),
        }
    }

    /// Reads nothing of the console until no more goes into it: until the emulator has gone on for a while and
    /// written no byte.
    ///
    /// # Errors
    ///
    /// A system call's; or the console took all that was said, or the emulator did not go on.
    pub fn jam(&self) -> io::Result<()> {
        // Two pages. Of the first, what was read already is not written again; the second is written in full.
        let room = fcntl_setpipe_size(&self.console, Self::PAGES)?;
        let end = Instant::now() + Self::JAM_GUARD;
        let (mut held, mut since) = (None, Duration::ZERO);
        while Instant::now() < end {
            let cpu_time = self.usage().map(|usage| usage.cpu_time);
            let cpu_time = cpu_time.ok_or_else(|| io::Error::other("it ended before"))?;
            let now = ioctl_fionread(&self.console)?;
            if held != Some(now) {
                (held, since) = (Some(now), cpu_time);
            } else if cpu_time.saturating_sub(since) >= Self::JAM {
                return match now as usize * 2 >= room {
                    true => Ok(()),
                    false => Err(io::Error::other("the console was not full")),
                };
            }
            thread::sleep(Duration::from_millis(5));
        }
        Err(io::Error::other("it did not go on behind a full console"))
    }

    /// Types bytes. What the board does not take at once is kept for [`Emulator::flush`].
    pub fn send(&mut self, bytes: &[u8]) {
        let room = Self::MOST_UNSENT.saturating_sub(self.unsent.len());
        self.unsent
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.flush();
    }

    /// Sends what was kept.
    pub fn flush(&mut self) {
        let Some(keys) = &mut self.keys else {
            return;
        };
        while !self.unsent.is_empty() {
            match keys.write(&self.unsent) {
                Ok(n) => drop(self.unsent.drain(..n)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The emulator has closed its input: it is ending, which the console tells.
                Err(_) => {
                    self.keys = None;
                    self.unsent.clear();
                    return;
                }
            }
        }
    }

    /// Waits for the end after the console was closed.
    ///
    /// # Errors
    ///
    /// The system call's.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.keys = None;
        self.child.wait()
    }

    /// Asks it to end by itself, which it does with success.
    ///
    /// # Errors
    ///
    /// The system call's.
    pub fn release(&self) -> io::Result<()> {
        let own = rustix::process::Pid::from_child(&self.child);
        Ok(rustix::process::kill_process(
            own,
            rustix::process::Signal::TERM,
        )?)
    }

    /// Ends it now.
    pub fn kill(&mut self) {
        // Both fail only if it has ended and was waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns the text that the emulator itself wrote to its standard error.
    pub fn messages(&mut self) -> String {
        let mut text = Vec::new();
        // Without its words the failure is still reported.
        let _ = self.messages.rewind();
        let _ = self.messages.read_to_end(&mut text);
        String::from_utf8_lossy(&text).trim().to_owned()
    }

    /// Returns its use of the host so far; `None` when it has ended.
    pub fn usage(&self) -> Option<Usage> {
        let tasks = format!("/proc/{}/task", self.child.id());
        let (mut ticks, mut asleep) = (0, true);
        for task in fs::read_dir(tasks).ok()?.flatten() {
            // A thread may have ended just now.
            let Ok(stat) = fs::read_to_string(task.path().join("stat")) else {
                continue;
            };
            let (own, sleeps) = stat_of_thread(&stat)?;
            ticks += own;
            asleep &= sleeps;
        }
        Some(Usage {
            cpu_time: Duration::from_millis(ticks * 1000 / TICKS),
            asleep,
        })
    }

    /// Process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A duration as [`poll`] wants it.
pub(super) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Emulator {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Emulator::start(command).expect("a shell")
    }

    fn read_all(emulator: &mut Emulator) -> String {
        let mut all = Vec::new();
        let mut buffer = [0; 512];
        loop {
            match emulator.read(&mut buffer, Duration::from_secs(20)).unwrap() {
                Output::Bytes(n) => all.extend_from_slice(&buffer[..n]),
                Output::Closed => return String::from_utf8(all).unwrap(),
                Output::Silence => panic!("the child hangs"),
            }
        }
    }

    #[test]
    fn what_it_takes_of_the_host_is_read_of_each_thread() {
        let stat = "77 (a) R b) S 1 77 77 0 -1 4194304 1 2 3 4 20 5 6 7 20 0 1 0";
        assert_eq!(stat_of_thread(stat), Some((25, true)));
        let stat = stat.replace(") S ", ") R ");
        assert_eq!(stat_of_thread(&stat), Some((25, false)));
        assert_eq!(stat_of_thread("77 (a) R 1"), None);
        let mut sleeper = shell("read line; while :; do :; done");
        let usage = |emulator: &Emulator| emulator.usage().unwrap();
        while !usage(&sleeper).asleep {}
        sleeper.send(b"\n");
        while usage(&sleeper).asleep || usage(&sleeper).cpu_time.is_zero() {}
        sleeper.kill();
        assert_eq!(sleeper.usage(), None);
    }

    #[test]
    fn keys_go_in_and_the_console_comes_out() {
        let mut emulator = shell("read line; echo \"got $line\"; echo oops >&2; exit 7");
        emulator.send(b"hello\n");
        assert_eq!(read_all(&mut emulator), "got hello\n");
        assert_eq!(emulator.wait().unwrap().code(), Some(7));
        assert_eq!(emulator.messages(), "oops");
    }

    #[test]
    fn a_board_that_takes_no_keys_blocks_nobody() {
        let mut emulator = shell("sleep 0.2; cat | wc -c");
        emulator.send(&vec![b'x'; 2 * Emulator::MOST_UNSENT]);
        assert!(emulator.blocked_keys().is_some());
        while emulator.blocked_keys().is_some() {
            std::thread::sleep(Duration::from_millis(5));
            emulator.flush();
        }
        emulator.keys = None;
        let taken: usize = read_all(&mut emulator).trim().parse().unwrap();
        assert_eq!(taken, Emulator::MOST_UNSENT);
    }

    #[test]
    fn a_console_that_nobody_reads_is_full_at_some_time() {
        let loops = "while :; do :; done";
        let mut talker = shell(&format!("read l; head -c 9000 /dev/zero & {loops}"));
        talker.send(b"\n");
        talker.jam().unwrap();
        assert_eq!(ioctl_fionread(&talker.console).unwrap(), 8192);
        let silent = shell(loops);
        let why = silent.jam().unwrap_err().to_string();
        assert_eq!(why, "the console was not full");
    }

    #[test]
    fn dropping_it_ends_it() {
        let emulator = shell("echo up; exec sleep 1000");
        let folder = format!("/proc/{}", emulator.id());
        assert!(std::path::Path::new(&folder).exists());
        drop(emulator);
        assert!(!std::path::Path::new(&folder).exists());
    }

    #[test]
    fn it_dies_with_the_thread_that_started_it() {
        let id = std::thread::spawn(|| {
            let emulator = shell("exec sleep 1000");
            let id = emulator.id();
            std::mem::forget(emulator);
            id
        })
        .join()
        .unwrap();
        // Nobody waits for the forgotten child, so what remains is a zombie.
        let state = || std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        while !state().contains(") Z ") {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_missing_program_is_the_environments_fault() {
        let failure = Emulator::start(Command::new("/nonexistent/qemu")).unwrap_err();
        assert_eq!(
            failure.outcome,
            bulkhead_model::failure::Outcome::Environment
        );
        assert!(failure.advice.contains("qemu-system-arm"));
    }
}
