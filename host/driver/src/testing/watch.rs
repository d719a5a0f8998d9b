//! Watching the console of a system that runs.

use std::time::{Duration, Instant};

use bulkhead_model::failure::Failure;
use bulkhead_runner::profile::Pace;
use bulkhead_runner::run::{Clock, Emulator, Output, Qemu};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

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

/// How long nothing is said until `judge` is asked all the same, and the guard time is looked at.
const SILENCE: Duration = Duration::from_millis(100);

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
    let pace = match qemu.clock {
        Clock::Instructions { .. } => Some(Pace::new()?),
        Clock::Host => None,
    };
    watch_paced(qemu, pace, guard, |bytes, _| judge(bytes))
}

/// As [`watch`], with this pacer. Whenever it holds the machine, `judge` has seen all that was said until then and its keys
/// are typed before the machine goes on. It is told whether the machine is held: then no debugger can stop it.
///
/// # Errors
///
/// As for [`watch`].
pub fn watch_paced<N: Into<Next>>(
    qemu: &Qemu,
    mut pace: Option<Pace>,
    guard: Duration,
    mut judge: impl FnMut(&[u8], bool) -> (Vec<u8>, N),
) -> Result<Ended, Failure> {
    let mut qemu = qemu.clone();
    qemu.plugins
        .extend(pace.iter().map(|pace| pace.argument.clone()));
    let mut emulator = Emulator::start(qemu.command())?;
    let deadline = Instant::now() + guard;
    let mut buffer = [0; 16 * 1024];
    let failed = |error| Failure::environment("cannot read the console of QEMU", error, "");
    let (mut powered_off, mut hangs) = (false, false);
    loop {
        wait(&emulator, pace.as_ref()).map_err(failed)?;
        // Asked before the console is read: then that has all that was said before.
        let held = pace.as_mut().map(Pace::is_held).transpose();
        let mut held = held.map_err(failed)?.unwrap_or(false);
        let enough = loop {
            let output = emulator.read(&mut buffer, Duration::ZERO).map_err(failed)?;
            let bytes = match output {
                Output::Bytes(n) => &buffer[..n],
                Output::Silence => &[],
                Output::Closed => {
                    powered_off = emulator.wait().map_err(failed)?.success();
                    break true;
                }
            };
            let is_all = bytes.is_empty();
            let (keys, next) = judge(bytes, held);
            let next = next.into();
            if next == Next::Watch {
                emulator.send(&keys);
            }
            // With nothing left to read, or it would go on before its line was judged.
            if held && is_all {
                held = false;
                if let Some(pace) = &mut pace {
                    pace.go_on();
                }
            }
            match next {
                Next::Watch => {}
                Next::Kill => break true,
                Next::Release => emulator.release().map_err(failed)?,
            }
            if Instant::now() >= deadline {
                hangs = true;
                break true;
            }
            if !held {
                break false;
            }
        };
        if enough {
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

/// Waits until something was said or the machine is held, or for [`SILENCE`].
fn wait(emulator: &Emulator, pace: Option<&Pace>) -> std::io::Result<()> {
    let console = emulator.console();
    let held = pace.and_then(Pace::held);
    let fds = [Some(console), held].into_iter().flatten();
    let mut fds: Vec<_> = fds
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let silence = Timespec {
        tv_sec: 0,
        tv_nsec: SILENCE.subsec_nanos().into(),
    };
    match poll(&mut fds, Some(&silence)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
