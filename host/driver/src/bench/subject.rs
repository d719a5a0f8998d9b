//! The systems that are measured: one VM with the `bench` guest; two with the `vcpu-switch-cost` guest on one CPU, both
//! fair or one a server, and eight; two with the `sleep-cost` guest on one CPU, and a server with it alone. Those of devices are in `devices.rs`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use bulkhead_abi::plan::{MAX_PCPUS, MAX_VCPUS_PER_PCPU};
use bulkhead_profiler::{Marks, Profile};

use bulkhead_model::checkout;
use bulkhead_model::failure::Failure;
use bulkhead_runner::Effort;
use bulkhead_runner::build::Built;
use bulkhead_runner::cross_build;
use bulkhead_runner::emulated;
use bulkhead_runner::prepare::{self, Stopped};
use bulkhead_runner::profile::Instrument;
use bulkhead_runner::profile::Program;
use bulkhead_runner::progress::Step;
use bulkhead_runner::run::{Clock, Qemu};

use super::budgets::Gic;
use super::ending::run_to_end;
use super::variant::variant;

/// The operations that the guest marks; the guest's own file, so that both agree.
#[path = "../../../../guests/src/figures.rs"]
pub mod operations;

/// The systems that are measured, and the one whose RAM is a figure.
const BENCH: &str = "lab/systems/bench.toml";
const BENCH_V2: &str = "lab/systems/bench-gicv2.toml";
const TURNS: &str = "lab/systems/bench-switch.toml";
const TURNS_V2: &str = "lab/systems/bench-switch-gicv2.toml";
const SERVER: &str = "lab/systems/bench-server.toml";
const SERVER_V2: &str = "lab/systems/bench-server-gicv2.toml";
const TIMERS: &str = "lab/systems/bench-switch-timer.toml";
const TIMERS_V2: &str = "lab/systems/bench-switch-timer-gicv2.toml";
const SLEEP: &str = "lab/systems/bench-sleep.toml";
const SLEEP_V2: &str = "lab/systems/bench-sleep-gicv2.toml";
const ALONE: &str = "lab/systems/bench-alone.toml";
const ALONE_V2: &str = "lab/systems/bench-alone-gicv2.toml";
const DEMO: &str = "systems/demo.toml";
/// Frequency of the counter at which one tick is one instruction.
pub(super) const COUNTER: &str = ",cntfrq=1000000000";

/// Builds a system from its description.
pub type Make<'a> = &'a dyn Fn(&Path) -> Result<Built, Stopped>;

/// Results of a run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Counts of the profiler.
    pub profile: Profile,
    /// Mean latencies that the guest saw, in ticks, by the name of the operation.
    pub latencies: BTreeMap<String, u64>,
}

impl Run {
    /// Takes of each operation what `other` has, where that is more.
    pub fn take_worse(&mut self, other: Self) {
        for (id, theirs) in other.profile.figures {
            let ours = self.profile.figures.entry(id).or_default();
            if ours.cost.instructions < theirs.cost.instructions {
                *ours = theirs;
            }
        }
    }
}

/// An image, the programs in it, and the board that it is for.
#[derive(Clone, Debug)]
pub struct Subject {
    /// QEMU with the image.
    pub qemu: Qemu,
    /// EL2 as it was linked into the image.
    pub el2: PathBuf,
    /// The guest in it that marks its operations.
    pub guest: PathBuf,
    /// Words that it says at its end.
    last: String,
    /// Address at which the image is loaded.
    pub base: u64,
}

/// The plan of the demo system, or of as much of it as is there: kernels change nothing about EL2's RAM.
///
/// # Errors
///
/// The description is wrong, or a tool is missing.
pub fn demo_plan() -> Result<Vec<u8>, Failure> {
    let prepared = prepare::prepare(&checkout::root().join(DEMO), Effort::WhatIsThere);
    prepared
        .map(|prepared| prepared.planned.bytes)
        .map_err(plain)
}

/// Returns why there is no plan, for descriptions that are the project's own.
fn plain(stopped: Stopped) -> Failure {
    match stopped {
        Stopped::Failure(failure) => failure,
        Stopped::Description(text, findings) => {
            let why = text.render(&findings, false);
            Failure::input(format!("{} is wrong", text.name), why, "")
        }
    }
}

/// How a system differs from the one that is measured first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// vCPUs in the VM that is measured.
    Vcpus,
    /// Other VMs.
    Vms,
    /// Less of EL2: the profile `static`, which the system gets without the monitor.
    Static,
}

impl Shape {
    /// All shapes.
    pub const ALL: [Self; 3] = [Self::Vcpus, Self::Vms, Self::Static];
}

/// pCPUs of the system that is measured, which has a vCPU for each.
const USUAL_PCPUS: usize = 2;

/// VMs that sleep, each with its number and its pCPU.
fn sleepers(each: impl Iterator<Item = (usize, usize)>) -> String {
    let mut others = String::new();
    for (n, pcpu) in each {
        let _ = write!(
            others,
            "[vm.sleeper-{n}]\npcpus = [{pcpu}]\ncpu = \"fair\"\nmemory = \"4MiB\"\nimage = \"guest:sleeper\"\n\n"
        );
    }
    others
}

impl Subject {
    /// Builds the system in which one guest does one operation after the other.
    ///
    /// # Errors
    ///
    /// Something can't be built, or a tool is missing.
    pub fn build(gic: Gic, make: Make<'_>) -> Result<Self, Failure> {
        let (system, last) = Self::system(gic);
        Self::build_one(system, "bench", last, make)
    }

    /// Builds the same system in another shape, which must cost nobody anything: its VM with as many vCPUs as one can have, as many other
    /// VMs beside it as its pCPUs leave room for, or without the monitor. They are measured when all have started. One is built when the one before has run, since it
    /// takes the place of that one's image.
    ///
    /// # Errors
    ///
    /// As for [`Self::build`].
    pub fn build_shape(gic: Gic, shape: Shape, folder: &Path) -> Result<Self, Failure> {
        let (system, last) = Self::system(gic);
        if shape == Shape::Static {
            let without = "[console]\nmonitor = false\n\n[vm.bench]";
            return Self::of(
                variant(system, &[("[vm.bench]", without)], folder)?,
                "bench",
                last,
            );
        }
        let others = match shape {
            // As many as there is room for where the VM that is measured has no pCPU.
            Shape::Vms => {
                let room = 0..(MAX_PCPUS - USUAL_PCPUS) * MAX_VCPUS_PER_PCPU;
                sleepers(room.map(|n| (n, USUAL_PCPUS + n / MAX_VCPUS_PER_PCPU)))
            }
            _ => String::new(),
        };
        let vcpus = match shape {
            Shape::Vcpus => MAX_PCPUS,
            _ => USUAL_PCPUS,
        };
        let words = [
            (
                format!("\ncpus = {USUAL_PCPUS}\n"),
                format!("\ncpus = {MAX_PCPUS}\n"),
            ),
            (
                format!("\nvcpus = {USUAL_PCPUS}\n"),
                format!("\nvcpus = {vcpus}\ncmdline = \"after=100\"\n"),
            ),
            ("[shared.restart]".to_owned(), others + "[shared.restart]"),
        ];
        let words = words
            .each_ref()
            .map(|(old, new)| (old.as_str(), new.as_str()));
        Self::of(variant(system, &words, folder)?, "bench", last)
    }

    fn system(gic: Gic) -> (&'static str, String) {
        let system = match gic {
            Gic::V3 => BENCH,
            Gic::V2 => BENCH_V2,
        };
        (
            system,
            format!("bench: {} operations each", operations::OPERATIONS),
        )
    }

    /// Builds the systems in which vCPUs share a pCPU or have a part of it.
    ///
    /// # Errors
    ///
    /// Something can't be built, or a tool is missing.
    pub fn build_turns(gic: Gic, make: Make<'_>) -> Result<Vec<Self>, Failure> {
        let systems = match gic {
            Gic::V3 => [TURNS, SERVER, TIMERS, SLEEP, ALONE],
            Gic::V2 => [TURNS_V2, SERVER_V2, TIMERS_V2, SLEEP_V2, ALONE_V2],
        };
        let guests = ["vcpu-switch-cost", "sleep-cost"];
        let [switch, sleep] = guests.map(|guest| (guest, format!("{guest}: all seen")));
        let guests = [&switch, &switch, &switch, &sleep, &sleep];
        let each = systems.into_iter().zip(guests);
        each.map(|(system, (guest, last))| Self::build_one(system, guest, last.clone(), make))
            .collect()
    }

    /// Builds those of several VMs on a pCPU with as many vCPUs there as it can have: the others sleep, and their timers are armed.
    ///
    /// # Errors
    ///
    /// As for [`Self::build`].
    pub fn build_full(gic: Gic, folder: &Path) -> Result<Vec<Self>, Failure> {
        let [turns, sleep] = match gic {
            Gic::V3 => [TURNS, SLEEP],
            Gic::V2 => [TURNS_V2, SLEEP_V2],
        };
        let systems = [(turns, "vcpu-switch-cost", 2), (sleep, "sleep-cost", 3)];
        let each = systems.into_iter().map(|(system, guest, there)| {
            let others = sleepers((there..MAX_VCPUS_PER_PCPU).map(|n| (n, 0)));
            let built = variant(system, &[("[board]", &(others + "[board]"))], folder)?;
            Self::of(built, guest, format!("{guest}: all seen"))
        });
        each.collect()
    }

    fn build_one(system: &str, guest: &str, last: String, make: Make<'_>) -> Result<Self, Failure> {
        let built = make(&checkout::root().join(system)).map_err(plain)?;
        Self::of(built, guest, last)
    }

    /// A system that was built, in which the program `guest` marks its operations and says `last` at its end.
    ///
    /// # Errors
    ///
    /// It is for no emulated board, or the program can't be built.
    pub fn of(built: Built, guest: &str, last: String) -> Result<Self, Failure> {
        let Some(board) = &built.planned.board.emulated else {
            let advice = "name an emulated board";
            let what = "what is measured is for no emulated board";
            return Err(Failure::input(what, "", advice));
        };
        let base = built.planned.image.base;
        let mut qemu = emulated::qemu(board, &built.image, base)?;
        qemu.cpu.push_str(COUNTER);
        qemu.clock = Clock::Instructions { shift: 0 };
        Ok(Self {
            qemu,
            el2: built.el2,
            guest: cross_build::guest(guest)?,
            last,
            base,
        })
    }

    /// Runs it to its end under the profiler.
    ///
    /// # Errors
    ///
    /// QEMU or the profiler can't be run, or the guest does not get to its end.
    pub fn run(&self, el2: &Program) -> Result<Run, Failure> {
        self.measure(el2, false)
    }

    /// The same, where marks bound what all CPUs do, guests included.
    ///
    /// # Errors
    ///
    /// As for [`Self::run`].
    pub fn run_everywhere(&self, el2: &Program) -> Result<Run, Failure> {
        self.measure(el2, true)
    }

    fn measure(&self, el2: &Program, everywhere: bool) -> Result<Run, Failure> {
        let cannot = |error: &dyn std::fmt::Display| {
            Failure::environment("cannot prepare the measurement", error, "")
        };
        let folder = tempfile::tempdir().map_err(|error| cannot(&error))?;
        let guest = Program::read(&self.guest)?;
        let instrument = Instrument {
            boot: Some(self.base),
            marks: Some(Marks {
                everywhere,
                ..guest.marks(operations::BEGIN_SYMBOL, operations::END_SYMBOL)?
            }),
            ..Instrument::new(el2)
        };
        let attached = instrument.attach(folder.path())?;
        let mut qemu = self.qemu.clone();
        qemu.plugins.push(attached.argument.clone());

        let step = Step::start("measuring: each operation many times");
        let said = run_to_end(&qemu, &self.last)?;
        drop(step);
        Ok(Run {
            profile: attached.profile()?,
            latencies: latencies(&said),
        })
    }
}

/// The means in lines like `[bench] latency sgi_self: ticks min=1 avg=2 max=3`.
fn latencies(said: &str) -> BTreeMap<String, u64> {
    let lines = said.lines().filter_map(|line| {
        let (name, rest) = line.split_once("latency ")?.1.split_once(": ticks ")?;
        let mean = rest.split(' ').find_map(|word| word.strip_prefix("avg="))?;
        Some((name.to_owned(), mean.trim().parse().ok()?))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::latencies;

    #[test]
    fn latencies_are_read_from_what_the_guest_says() {
        let said = "[bench] latency sgi_self: ticks min=97 avg=98 max=120\r\n[bench] bench: 1000 operations\n";
        let seen = latencies(said);
        assert_eq!(seen.len(), 1);
        assert_eq!(seen["sgi_self"], 98);
    }
}
