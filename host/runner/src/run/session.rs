//! The loop that connects an emulator with the user: one thread, one `poll`.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::attach::Server;
use super::emulator::{Emulator, Output, timespec};
use super::keys::{Action, Keys};
use super::terminal::{RawMode, is_terminal};
use crate::temp_files::Session;

/// End of a session. The emulator has ended with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The emulator ended by itself: the board was powered off, or it failed.
    Emulator(ExitStatus),
    /// The user asked for it.
    Quit,
    /// The view asked for it.
    View,
    /// A signal came.
    Signal(i32),
    /// The time was over.
    TimedOut,
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Go on.
    Continue,
    /// End the session.
    End,
}

/// Viewer of a session: shows it, and may type.
pub trait View {
    /// The board said something. `keys` are typed on the console afterwards.
    ///
    /// # Errors
    ///
    /// The output is gone; the session ends as if the user had quit.
    fn console(&mut self, bytes: &[u8], keys: &mut Vec<u8>) -> io::Result<Flow>;

    /// Called at least ten times a second.
    ///
    /// # Errors
    ///
    /// As for [`View::console`].
    fn tick(&mut self, keys: &mut Vec<u8>) -> io::Result<Flow> {
        let _ = keys;
        Ok(Flow::Continue)
    }
}

/// Options of a session besides emulator and view.
#[derive(Debug, Default)]
pub struct Options {
    /// Others may attach here.
    pub server: Option<Server>,
    /// The session ends after so long.
    pub limit: Option<Duration>,
    /// Pass keys from the terminal to the board. Without a terminal none are read.
    pub interactive: bool,
}

/// Runs the session until somebody ends it. The terminal is as before afterwards, however it ends.
///
/// # Errors
///
/// A system call failed that cannot fail in normal operation.
pub fn session(emulator: &mut Emulator, options: Options, view: &mut dyn View) -> io::Result<End> {
    // What somebody runs ends in good order; what a test runs ends with the test.
    let signals = options.interactive.then(Session::begin);
    let interactive = options.interactive && is_terminal();
    let raw = interactive.then(RawMode::enter).transpose()?;
    let end = turn(emulator, options, view, signals.as_ref(), interactive);
    drop(raw);
    if !matches!(end, Ok(End::Emulator(_))) {
        emulator.kill();
    }
    end
}

fn turn(
    emulator: &mut Emulator,
    mut options: Options,
    view: &mut dyn View,
    signals: Option<&Session>,
    interactive: bool,
) -> io::Result<End> {
    /// Bounds how late a signal is noticed that arrives just before `poll`, and paces ticks.
    const TICK: Duration = Duration::from_millis(100);
    let deadline = options.limit.map(|limit| Instant::now() + limit);
    let mut stdin = std::fs::File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut keys = Keys::default();
    let mut buffer = [0; 16 * 1024];
    loop {
        if let Some(signal) = signals.and_then(Session::signal) {
            return Ok(End::Signal(signal));
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(End::TimedOut);
        }
        let typed = wait(emulator, &options, &stdin, interactive, TICK)?;
        let mut to_board = Vec::new();
        let flow = match emulator.read(&mut buffer, Duration::ZERO)? {
            Output::Bytes(n) => {
                if let Some(server) = &mut options.server {
                    server.show(&buffer[..n]);
                }
                view.console(&buffer[..n], &mut to_board)
            }
            Output::Silence => Ok(Flow::Continue),
            Output::Closed => return Ok(End::Emulator(emulator.wait()?)),
        };
        let flow = flow.and_then(|flow| match flow {
            Flow::Continue => view.tick(&mut to_board),
            Flow::End => Ok(flow),
        });
        match flow {
            Ok(Flow::Continue) => {}
            Ok(Flow::End) => return Ok(End::View),
            // A reader that went away, as `head` does, has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(End::Quit),
            Err(error) => return Err(error),
        }
        if let Some(server) = &mut options.server {
            to_board.extend(server.serve());
        }
        if typed {
            let n = stdin.read(&mut buffer)?;
            let (pass, action) = keys.filter(&buffer[..n]);
            if keys.asks_for_help() {
                eprint!("\r\nCtrl-T q: end the run\r\n");
            }
            to_board.extend(pass);
            if n == 0 || action.is_some_and(|action| action == Action::Quit) {
                return Ok(End::Quit);
            }
        }
        emulator.send(&to_board);
    }
}

/// Waits until something can be done or the time is over; tells whether keys were typed.
fn wait(
    emulator: &Emulator,
    options: &Options,
    stdin: &std::fs::File,
    interactive: bool,
    time: Duration,
) -> io::Result<bool> {
    let mut fds = vec![PollFd::from_borrowed_fd(emulator.console(), PollFlags::IN)];
    if interactive {
        fds.push(PollFd::new(stdin, PollFlags::IN));
    }
    if let Some(blocked) = emulator.blocked_keys() {
        fds.push(PollFd::from_borrowed_fd(blocked, PollFlags::OUT));
    }
    if let Some(server) = &options.server {
        let of_server = server.fds();
        fds.extend(of_server.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)));
    }
    match poll(&mut fds, Some(&timespec(time))) {
        Ok(_) => Ok(interactive && !fds[1].revents().is_empty()),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::run::attach::connect;
    use crate::run::console::Transcript;

    /// Answers a prompt and ends the session at a line.
    #[derive(Default)]
    struct Script {
        transcript: Transcript,
        stop_at: Option<&'static str>,
        ticks: u32,
    }

    impl View for Script {
        fn console(&mut self, bytes: &[u8], keys: &mut Vec<u8>) -> io::Result<Flow> {
            let first = self.transcript.push(bytes);
            if self
                .transcript
                .partial()
                .is_some_and(|line| line.text == "~ # ")
            {
                keys.extend(b"poweroff\n");
            }
            let stop = self.transcript.lines[first..]
                .iter()
                .any(|line| Some(line.text.as_str()) == self.stop_at);
            Ok(if stop { Flow::End } else { Flow::Continue })
        }

        fn tick(&mut self, _: &mut Vec<u8>) -> io::Result<Flow> {
            self.ticks += 1;
            Ok(Flow::Continue)
        }
    }

    fn board(script: &str) -> Emulator {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Emulator::start(command).expect("a shell")
    }

    #[test]
    fn the_view_answers_and_the_board_ends() {
        let mut emulator = board(
            "printf '[el2] Bulkhead 0.1.0, 1 pCPU, 1 VM\\r\\n[a] ~ # '; read x; \
             printf '%s\\r\\n[el2] vm a stopped: power off\\r\\n' \"$x\"; exit 3",
        );
        let mut view = Script::default();
        let end = session(&mut emulator, Options::default(), &mut view).unwrap();
        let End::Emulator(status) = end else {
            panic!("{end:?}")
        };
        assert_eq!(status.code(), Some(3));
        assert!(view.transcript.end_of("a").unwrap().orderly());
        assert_eq!(
            view.transcript.of("a").collect::<Vec<_>>(),
            ["~ # poweroff"]
        );
        assert!(view.ticks > 0);
    }

    #[test]
    fn the_view_may_end_it_and_the_emulator_ends_too() {
        let mut emulator = board("echo '[a] go'; exec sleep 1000");
        let mut view = Script {
            stop_at: Some("go"),
            ..Script::default()
        };
        let end = session(&mut emulator, Options::default(), &mut view).unwrap();
        assert_eq!(end, End::View);
        assert!(!std::path::Path::new(&format!("/proc/{}", emulator.id())).exists());
    }

    #[test]
    fn a_limit_ends_it() {
        let mut emulator = board("exec sleep 1000");
        let options = Options {
            limit: Some(Duration::from_millis(1)),
            ..Options::default()
        };
        let end = session(&mut emulator, options, &mut Script::default()).unwrap();
        assert_eq!(end, End::TimedOut);
    }

    #[test]
    fn others_attach_and_their_keys_reach_the_board() {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::listen(folder.path()).unwrap();
        let mut client = connect(folder.path()).unwrap();
        std::io::Write::write_all(&mut client, b"hello\n").unwrap();
        let mut emulator = board("read x; echo \"heard $x\"");
        let options = Options {
            server: Some(server),
            ..Options::default()
        };
        let end = session(&mut emulator, options, &mut Script::default()).unwrap();
        assert!(matches!(end, End::Emulator(_)));
        let mut heard = String::new();
        client.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "heard hello\n");
    }
}
