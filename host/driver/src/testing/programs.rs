//! Programs that tests start: their output and their end.

use std::io;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Longest time to wait for an end.
const GUARD: Duration = Duration::from_secs(60);

/// Returns a command that starts a program that heeds signals, also where the tests were started by something that does
/// not: a shell's `&`, or `nohup`.
pub(super) fn without_ignored_signals() -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal=INT,HUP,TERM");
    command
}

/// Waits for the end of a program that was told to end. One that goes on is killed.
pub(super) fn end(child: &mut Child) -> io::Result<ExitStatus> {
    let deadline = Instant::now() + GUARD;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(5));
    }
    child.kill()?;
    child.wait()?;
    Err(io::Error::other("it was told to end, and goes on"))
}

/// The lines of both of a program's streams, as far as they are pipes; it ends when they do.
pub(super) fn lines(child: &mut Child) -> Receiver<String> {
    let (send, lines) = channel();
    let streams: [Option<Box<dyn Read + Send>>; 2] = [
        child.stdout.take().map(|stream| Box::new(stream) as _),
        child.stderr.take().map(|stream| Box::new(stream) as _),
    ];
    for stream in streams.into_iter().flatten() {
        let send = send.clone();
        thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            while stream.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                line.clear();
                if send.send(text).is_err() {
                    break;
                }
            }
        });
    }
    lines
}
