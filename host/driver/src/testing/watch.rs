//! Watching the console of a system that runs.

use std::time::{Duration, Instant};

use bulkhead_model::failure::Failure;
use bulkhead_runner::run::{Emulator, Output, Qemu};

/// What [`watch`] does after a look at the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It goes on.
    Watch,
    /// It ends the emulator, however far that is.
    Kill,
    /// The board is off, and the emulator stayed for a debugger: it may end now.
    Release,
}

impl From<bool> for Next {
    /// `true` for [`Next::Kill`].
    fn from(enough: bool) -> Self {
        if enough { Self::Kill } else { Self::Watch }
    }
}

/// How an emulator ended.
#[derive(Debug)]
pub struct Ended {
    /// By itself and with success.
    pub powered_off: bool,
    /// The guard time was over.
    pub hangs: bool,
    /// What QEMU said on its standard error.
    pub messages: String,
}

/// Runs QEMU until it ends, `judge` says that it is enough, or the guard time is over. `judge` gives
/// keys to type; it is asked with no bytes now and then when nothing was said.
///
/// # Errors
///
/// QEMU cannot be started or read.
pub fn watch<N: Into<Next>>(
    qemu: &Qemu,
    guard: Duration,
    mut judge: impl FnMut(&[u8]) -> (Vec<u8>, N),
) -> Result<Ended, Failure> {
    let mut emulator = Emulator::start(qemu.command())?;
    let deadline = Instant::now() + guard;
    let mut buffer = [0; 16 * 1024];
    let failed = |error| Failure::environment("cannot read the console of QEMU", error, "");
    let (mut powered_off, mut hangs) = (false, false);
    loop {
        let output = emulator.read(&mut buffer, Duration::from_millis(100));
        let bytes = match output.map_err(failed)? {
            Output::Bytes(n) => &buffer[..n],
            Output::Silence => &[],
            Output::Closed => {
                powered_off = emulator.wait().map_err(failed)?.success();
                break;
            }
        };
        let (keys, next) = judge(bytes);
        match next.into() {
            Next::Watch => emulator.send(&keys),
            Next::Kill => break,
            Next::Release => emulator.release().map_err(failed)?,
        }
        if Instant::now() >= deadline {
            hangs = true;
            break;
        }
    }
    emulator.kill();
    Ok(Ended {
        powered_off,
        hangs,
        messages: emulator.messages(),
    })
}
