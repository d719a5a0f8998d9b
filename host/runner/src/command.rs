//! Running tools of the host for their output.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use bulkhead_model::failure::Failure;

/// Runs a tool and gives its output; its words are the reason when it fails.
pub fn run<W: Display>(
    command: &mut Command,
    what: impl Fn() -> W,
    advice: &str,
) -> Result<String, Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|e| {
        let advice = format!("install {program}; on Debian and Ubuntu `./bulkhead` does it");
        Failure::environment(what().to_string(), format!("{program}: {e}"), advice)
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(Failure::environment(what().to_string(), why, advice))
}

/// QEMU's program: `$BULKHEAD_QEMU`, or the one on the path.
pub fn program() -> PathBuf {
    std::env::var_os("BULKHEAD_QEMU").map_or_else(|| "qemu-system-aarch64".into(), PathBuf::from)
}
