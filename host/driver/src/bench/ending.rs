//! A QEMU that is watched to its end.

use std::fs::File;
use std::io::{Read, Seek};
use std::process::Stdio;
use std::time::{Duration, Instant};

use bulkhead_model::failure::Failure;
use bulkhead_runner::profile::Pace;
use bulkhead_runner::run::Qemu;
use bulkhead_runner::sys;

/// Time limit, against a hang only: a run takes seconds.
const GUARD: Duration = Duration::from_secs(600);

/// Runs QEMU until it ends by itself; returns what its console said, in which `last` has to be.
///
/// # Errors
///
/// QEMU can't be run, hangs, fails, or never says `last`.
pub(crate) fn run_to_end(qemu: &Qemu, last: &str) -> Result<String, Failure> {
    let cannot =
        |error: std::io::Error| Failure::environment("cannot prepare the measurement", error, "");
    let mut console = tempfile::tempfile().map_err(cannot)?;
    let stream = || console.try_clone().map_err(cannot);
    // Figures are taken on the instruction clock, and must not show the host's load.
    let pace = Pace::new()?;
    let mut qemu = qemu.clone();
    pace.put_on(&mut qemu);
    let mut command = qemu.command();
    command
        .stdin(Stdio::null())
        .stdout(stream()?)
        .stderr(stream()?);
    let mut child = sys::die_with_parent(&mut command)
        .spawn()
        .map_err(|error| {
            let advice = "install QEMU: `apt install qemu-system-arm`, or run `./bulkhead`";
            Failure::environment("cannot start QEMU", error, advice)
        })?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(cannot)? {
            break Some(status);
        }
        if start.elapsed() > GUARD {
            child
                .kill()
                .and_then(|()| child.wait().map(drop))
                .map_err(cannot)?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let said = text(&mut console).map_err(cannot)?;
    if said.contains(last) && status.is_some_and(|status| status.success()) {
        return Ok(said);
    }
    let how = status.map_or_else(
        || format!("it still ran after {} s", GUARD.as_secs()),
        |status| format!("the emulator ended with {status}"),
    );
    let why = format!("{how}; its last words:\n");
    let lines: Vec<&str> = said.lines().collect();
    let words = lines[lines.len().saturating_sub(20)..].join("\n");
    let what = "the system that is measured did not get to its end";
    let why = format!("{why}{words}");
    // By the host's clock nothing is known: it may be busy.
    Err(match status {
        None => Failure::environment(what, why, "try again when the computer is less busy"),
        Some(_) => Failure::failed(what, why, ""),
    })
}

/// All that was written to `file`.
fn text(file: &mut File) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
