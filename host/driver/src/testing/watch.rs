//! Watching the console of a system that runs.

use std::time::{Duration, Instant};

use bulkhead_model::failure::Failure;
use bulkhead_runner::profile::Pace;
use bulkhead_runner::run::{Clock, Emulator, Output, Qemu};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Action of [`watch`] after a look at the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It goes on.
    Watch,
    /// It goes on, and nobody reads the console before that is full.
    Jam,
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

/// Cost of a run, by measures that the load of the host does not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunCost {
    /// CPU time of the emulator.
    pub cpu_time: Duration,
    /// Longest row of looks at it, a tenth of a second and more apart, at which all of it slept, the console said
    /// nothing, and no CPU time had gone by.
    pub still: u32,
}

/// Bounds beyond which a run counts as hanging.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Time of the host's clock.
    pub host: Duration,
    /// Largest cost that it may have; not checked if absent.
    pub most: Option<RunCost>,
}

impl From<Duration> for Bounds {
    fn from(host: Duration) -> Self {
        Self { host, most: None }
    }
}

/// Reason for the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The emulator ended by itself.
    Itself,
    /// The judge had seen enough.
    Judge,
    /// It had taken more CPU time than it may.
    CpuTime,
    /// It stood still.
    Still,
    /// The guard time was over.
    Guard,
    /// It did not begin: EL2 lacks a function that is watched.
    Unfit,
}

/// End of a run of an emulator.
#[derive(Debug)]
pub struct Ended {
    /// Whether it ended by itself and with success.
    pub powered_off: bool,
    /// Whether the guard time was over.
    pub hangs: bool,
    /// Reason for its end.
    pub ending: Ending,
    /// Cost of the run.
    pub cost: RunCost,
    /// Text that QEMU wrote on its standard error.
    pub messages: String,
}

/// Looks at what an emulator takes.
#[derive(Debug, Default)]
struct Look {
    cost: RunCost,
    /// Number of looks in a row at which it stood still, until now.
    row: u32,
}

impl Look {
    fn take(&mut self, emulator: &Emulator, silent: bool) {
        let Some(usage) = emulator.usage() else {
            return;
        };
        let same = silent && usage.asleep && usage.cpu_time <= self.cost.cpu_time;
        self.row = if same { self.row + 1 } else { 0 };
        self.cost.still = self.cost.still.max(self.row);
        self.cost.cpu_time = self.cost.cpu_time.max(usage.cpu_time);
    }

    /// Returns the reason to end the run, if there is one.
    fn beyond(&self, most: RunCost) -> Option<Ending> {
        if self.cost.cpu_time > most.cpu_time {
            return Some(Ending::CpuTime);
        }
        (self.row > most.still).then_some(Ending::Still)
    }
}

/// Time without output until `judge` is asked all the same, and the bounds are looked at.
const SILENCE: Duration = Duration::from_millis(100);

/// Runs QEMU until it ends, `judge` says that it is enough, or a bound is reached. `judge` gives
/// keys to type; it is asked with no bytes now and then when nothing was said.
///
/// # Errors
///
/// QEMU cannot be started or read.
pub fn watch<N: Into<Next>>(
    qemu: &Qemu,
    bounds: impl Into<Bounds>,
    mut judge: impl FnMut(&[u8]) -> (Vec<u8>, N),
) -> Result<Ended, Failure> {
    let pace = match qemu.clock {
        Clock::Instructions { .. } => Some(Pace::new()?),
        Clock::Host => None,
    };
    watch_paced(qemu, pace, bounds, |bytes, _| judge(bytes))
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
    bounds: impl Into<Bounds>,
    mut judge: impl FnMut(&[u8], bool) -> (Vec<u8>, N),
) -> Result<Ended, Failure> {
    let bounds = bounds.into();
    let mut qemu = qemu.clone();
    if let Some(pace) = &pace {
        pace.put_on(&mut qemu);
    }
    let mut emulator = Emulator::start(qemu.command())?;
    let deadline = Instant::now() + bounds.host;
    let mut buffer = [0; 16 * 1024];
    let failed = |error| Failure::environment("cannot read the console of QEMU", error, "");
    let mut powered_off = false;
    let mut look = Look::default();
    let ending = loop {
        let silent = wait(&emulator, pace.as_ref()).map_err(failed)?;
        if bounds.most.is_some() {
            look.take(&emulator, silent);
        }
        // Asked before the console is read: then that has all that was said before.
        let held = pace.as_mut().map(Pace::is_held).transpose();
        let mut held = held.map_err(failed)?.unwrap_or(false);
        let ending = loop {
            let output = emulator.read(&mut buffer, Duration::ZERO).map_err(failed)?;
            let bytes = match output {
                Output::Bytes(n) => &buffer[..n],
                Output::Silence => &[],
                Output::Closed => {
                    powered_off = emulator.wait().map_err(failed)?.success();
                    break Some(Ending::Itself);
                }
            };
            let is_all = bytes.is_empty();
            let (keys, next) = judge(bytes, held);
            let next = next.into();
            if matches!(next, Next::Watch | Next::Jam) {
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
                Next::Jam => emulator.jam().map_err(failed)?,
                Next::Kill => break Some(Ending::Judge),
                Next::Release => emulator.release().map_err(failed)?,
            }
            if let Some(ending) = bounds.most.and_then(|most| look.beyond(most)) {
                break Some(ending);
            }
            if Instant::now() >= deadline {
                break Some(Ending::Guard);
            }
            if !held {
                break None;
            }
        };
        if let Some(ending) = ending {
            break ending;
        }
    };
    emulator.kill();
    Ok(Ended {
        powered_off,
        hangs: ending == Ending::Guard,
        ending,
        cost: look.cost,
        messages: emulator.messages(),
    })
}

/// Waits until something was said or the machine is held, or for [`SILENCE`]; returns whether that went by.
fn wait(emulator: &Emulator, pace: Option<&Pace>) -> std::io::Result<bool> {
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
        Ok(ready) => Ok(ready == 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_beyond_its_bounds_by_cpu_time_or_by_standing_still() {
        let most = RunCost {
            cpu_time: Duration::from_secs(2),
            still: 3,
        };
        let look = |millis, row| Look {
            cost: RunCost {
                cpu_time: Duration::from_millis(millis),
                still: 100,
            },
            row,
        };
        assert_eq!(look(2000, 3).beyond(most), None);
        assert_eq!(look(2001, 0).beyond(most), Some(Ending::CpuTime));
        assert_eq!(look(10, 4).beyond(most), Some(Ending::Still));
    }

    #[test]
    fn only_what_sleeps_silently_stands_still() {
        let mut command = std::process::Command::new("sleep");
        command.arg("1000");
        let mut emulator = Emulator::start(command).unwrap();
        // It may still be on its way to its sleep.
        while !emulator.usage().unwrap().asleep {}
        let mut look = Look::default();
        look.take(&emulator, true);
        for _ in 0..3 {
            look.take(&emulator, true);
        }
        assert!(look.row >= 3 && look.cost.still == look.row, "{look:?}");
        let longest = look.cost.still;
        look.take(&emulator, false);
        assert_eq!((look.row, look.cost.still), (0, longest));
        emulator.kill();
    }
}
