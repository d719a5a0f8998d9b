//! What EL2 takes of a Linux of the class soft-realtime that has devices: under cyclictest, with a thousand requests of 4 KiB and a thousand frames a
//! second, all of them its own. Half of the frames go out, the other half are the answers to them.

use std::collections::BTreeMap;
use std::path::Path;

use bulkhead_model::failure::Failure;
use bulkhead_profiler::Exits;
use bulkhead_runner::profile::{Instrument, Program, period_of};
use bulkhead_runner::progress::Step;

use super::ending::run_to_end;
use super::native::board;
use super::realtime::{Lengths, after, cannot, more};
use super::variant::variant;

const SYSTEM: &str = "lab/systems/bench-rt-io.toml";
const VM: &str = "rt";
/// Milliseconds of work, each with a wake-up of cyclictest, a request and a frame: in the description, and in the longer run.
const WORK: [u32; 2] = [500, 3500];
/// The last words of the kernel.
const LAST: &str = "Power down";

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RealtimeIo {
    /// Exits of the longer run that the shorter one did not have, on the CPU of the VM, by kind.
    pub exits: BTreeMap<String, Exits>,
    /// Requests of the longer run beyond those of the shorter one.
    pub requests: u64,
    /// Frames, likewise.
    pub frames: u64,
}

/// A run: exits by length, requests, and frames.
type Run = (Lengths, u64, u64);

impl RealtimeIo {
    /// Builds the systems and runs them.
    ///
    /// # Errors
    ///
    /// Something can't be built, fetched or run, or the Linux does not do what is measured.
    pub fn measure() -> Result<Self, Failure> {
        let folder = tempfile::tempdir().map_err(|error| cannot(&error))?;
        let step = Step::start("measuring: what EL2 takes of a Linux with devices");
        let [short, long] = WORK.map(|ms| run(ms, folder.path()));
        let (short, long) = (short?, long?);
        drop(step);
        Ok(Self {
            exits: more(&short.0, &long.0),
            requests: long.1.saturating_sub(short.1),
            frames: long.2.saturating_sub(short.2),
        })
    }

    /// Milliseconds in which that was.
    pub fn ms(&self) -> u64 {
        (WORK[1] - WORK[0]).into()
    }

    /// Instructions of EL2 in the time of a million, the mean of an exit, and the longest.
    pub fn figures(&self) -> [f64; 3] {
        let sum = |part: fn(&Exits) -> u64| self.exits.values().map(part).sum::<u64>() as f64;
        let (count, total) = (sum(|exits| exits.count), sum(|exits| exits.total));
        let longest = self.exits.values().map(|exits| exits.max).max();
        [
            total / self.ms() as f64,
            total / count.max(1.0),
            longest.unwrap_or(0) as f64,
        ]
    }
}

fn run(ms: u32, folder: &Path) -> Result<Run, Failure> {
    let [short, _] = WORK;
    let built = variant(
        SYSTEM,
        &[(&format!(" {short:04}'"), &format!(" {ms:04}'"))],
        folder,
    )?;
    let el2 = Program::read(&built.el2)?;
    let instrument = Instrument {
        period: period_of(&built.planned.bytes, VM),
        ..Instrument::new(&el2)
    };
    let attached = instrument.attach(folder)?;
    let mut qemu = board(&built, 0)?;
    qemu.plugins.push(attached.argument.clone());
    let said = run_to_end(&qemu, LAST)?;
    if after(&said, " C:") != Some(ms.into()) {
        return Err(Failure::failed("cyclictest did not run to its end", "", ""));
    }
    // `issued rwts: total=250,251,0,0` and `700 packets transmitted, 700 packets received`
    let writes = format!("total={},", after(&said, "total=").unwrap_or(0));
    let requests = after(&said, "total=").zip(after(&said, &writes));
    let frames = after(&said, "packets transmitted,");
    let why = || Failure::failed("fio or ping did not run to its end", said.clone(), "");
    let (reads, writes) = requests.ok_or_else(why)?;
    // Each was answered.
    let frames = 2 * frames.ok_or_else(why)?;
    Ok((attached.profile()?.watched, reads + writes, frames))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_all_kinds_together() {
        let exits = |count, total, max| Exits { count, total, max };
        let counted = RealtimeIo {
            exits: [
                ("irq 27", exits(10, 900, 95)),
                ("sync EC 0x24", exits(20, 5100, 800)),
            ]
            .map(|(kind, exits)| (kind.to_owned(), exits))
            .into(),
            ..RealtimeIo::default()
        };
        assert_eq!(counted.figures(), [2.0, 200.0, 800.0]);
    }
}
