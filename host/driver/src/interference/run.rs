//! The runs: which work, in which setting, and what was counted.

use std::path::PathBuf;

use bulkhead_model::failure::Failure;
use bulkhead_plugin::caches::{Config, Counted, Counts, EL2, Geometry};
use bulkhead_runner::cross_build;
use bulkhead_runner::profile::{Program, build_plugin, configure};
use bulkhead_runner::progress::Step;
use serde::Serialize;
use tempfile::TempDir;

use crate::bench::{board, run_to_end, variant};

const SYSTEM: &str = "lab/systems/interference.toml";
const GUEST: &str = "interference";
const LINUX_SYSTEM: &str = "lab/systems/interference-linux.toml";
const LINUX_GUEST: &str = "works";
/// The first of its figures.
const LINUX_FIGURE: u64 = 11;
/// Milliseconds for which the others sleep, until shortly before that program begins.
const AFTER: u32 = 1400;
/// What of it differs by run: the work of the first VM, and how long and in which turns the others disturb it.
const MEASURED: &str = "stride=256 rounds=4";
const OTHERS: &str = "tick=100 ms=60";
/// The last words of EL2.
const LAST: &str = "all VMs stopped";
/// VMID of the measured VM, the first one.
const VM: u16 = 1;
/// The figure that its marks name.
const FIGURE: u64 = 1;

/// Work whose use of the caches is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Work {
    /// Name, as in the table.
    pub name: &'static str,
    /// For the guest.
    #[serde(skip)]
    pub argument: &'static str,
    /// Bytes that it works in, about.
    pub bytes: u32,
}

/// Work of this name.
pub const fn work(name: &'static str, argument: &'static str, kib: u32) -> Work {
    Work {
        name,
        argument,
        bytes: kib << 10,
    }
}

/// All of them: strides, of which it is known what they miss, then the kernels of MiBench's automotive set, small and large.
pub const WORKS: [Work; 10] = [
    work("stride-256k", "stride=256 rounds=16", 256),
    work("stride-512k", "stride=512 rounds=8", 512),
    work("qsort-small", "qsort=1500", 47),
    work("qsort-large", "qsort=12000", 375),
    work("susan-small", "susan=64", 8),
    work("susan-large", "susan=192", 56),
    work("bitcount-small", "bitcount=1000", 2),
    work("bitcount-large", "bitcount=10000", 2),
    work("basicmath-small", "basicmath=500", 4),
    work("basicmath-large", "basicmath=4000", 32),
];

/// The same kernels as a program of Linux (`guests/linux-c/works.c`), in the order of its figures.
pub const LINUX_WORKS: [Work; 8] = [
    work("linux/qsort-small", "", 94),
    work("linux/qsort-large", "", 750),
    work("linux/susan-small", "", 7),
    work("linux/susan-large", "", 55),
    work("linux/bitcount-small", "", 2),
    work("linux/bitcount-large", "", 2),
    work("linux/basicmath-small", "", 4),
    work("linux/basicmath-large", "", 32),
];

/// What else runs, and whether memory keeps to colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Three VMs that write a word in each line of 512 KiB, again and again, with a tick of so many microseconds; none: nothing else runs. An emulator's CPUs take
    /// turns, which these ticks end: what is evicted in a turn comes back in the next one, so that two lengths show how much is due to that.
    pub tick: Option<u32>,
    /// EL2 has colours of its own where the VMs have; else it has all.
    pub el2: bool,
    /// The VM and EL2 have half of the shared cache, EL2 a quarter of that, and the others a quarter each, which two of them share; else each has all.
    pub coloured: bool,
    /// The VM has a CPU that is a cluster with a cache of its own, of the same size; the others share the other one, and have the VM's colours. `coloured` is not
    /// looked at.
    #[serde(skip)]
    pub own_cache: bool,
}

/// Turns of two lengths.
pub const TICKS: [u32; 2] = [50, 200];

impl Setting {
    /// In the order of the columns: those without colours first.
    pub const ALL: [Self; 6] = {
        let [short, long] = TICKS;
        [
            Self::of(None, false),
            Self::of(Some(short), false),
            Self::of(Some(long), false),
            Self::of(None, true),
            Self::of(Some(short), true),
            Self::of(Some(long), true),
        ]
    };

    const fn of(tick: Option<u32>, coloured: bool) -> Self {
        Self {
            tick,
            el2: coloured,
            coloured,
            own_cache: false,
        }
    }

    /// With a cache of its own, beside others if these have a tick.
    pub const fn in_own_cache(tick: Option<u32>) -> Self {
        Self {
            own_cache: true,
            ..Self::of(tick, false)
        }
    }

    /// This one with EL2 in all colours.
    const fn without_el2(self) -> Self {
        Self { el2: false, ..self }
    }

    /// Settings in which the latency of a timer is measured: without colours, with colours of the VMs alone, and with those of EL2, each as in
    /// [`Self::ALL`].
    pub const LATENCIES: [Self; 9] = {
        let [a, b, c, d, e, f] = Self::ALL;
        let (x, y, z) = (d.without_el2(), e.without_el2(), f.without_el2());
        [a, b, c, x, y, z, d, e, f]
    };

    /// In the words of the picture.
    pub fn name(self) -> String {
        let alone = match self.tick {
            None => "solo".to_owned(),
            Some(tick) => format!("beside three, ticks of {tick} us"),
        };
        match self.coloured {
            true => format!("{alone}, coloured"),
            false => alone,
        }
    }
}

/// Latency of a timer in one setting: cycles of the model from the instruction that it interrupts to the first of the guest's handler.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// What else ran.
    pub setting: Setting,
    /// Interrupts that were measured.
    pub interrupts: usize,
    /// Half of them took so many cycles at most: one that finds EL2 at work for somebody else, or needs what was never in a
    /// cache yet, does not change it.
    pub median: u64,
    /// The mean.
    pub mean: f64,
    /// The longest.
    pub most: u64,
}

/// Work that a timer interrupts; it needs more than an L1 has.
const TIMER: Work = work("timer", "", 128);
/// Microseconds from one of its interrupts to the next, unless somebody wants another period.
pub const PERIOD: u32 = 500;
/// Rounds of that work in 100 us, alone: an interrupt comes in each period, five and more in all.
const ROUNDS: u32 = 40;

/// What was counted in one setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// The work.
    pub work: Work,
    /// What else ran.
    pub setting: Setting,
    /// Of the VM, between its marks.
    pub vm: Counts,
    /// Of EL2 meanwhile, on all CPUs.
    pub el2: Counts,
    /// Instructions that a CPU executed in a turn meanwhile, on average: all of them together.
    pub turn: u64,
    /// Cycles of the VM by the model.
    pub cycles: u64,
}

/// Measures each work in each setting, with caches of this shape.
///
/// # Errors
///
/// Something can't be built or run, the work does not get to its end, or the model contradicts QEMU.
pub fn measure(works: &[Work], geometry: Geometry) -> Result<Vec<Run>, Failure> {
    let lab = Lab::new(geometry)?;
    let mut runs = Vec::new();
    for (n, work) in works.iter().enumerate() {
        let step = Step::start(format!("{}: {} of {}", work.name, n + 1, works.len()));
        runs.extend(lab.settings(*work)?);
        drop(step);
    }
    Ok(runs)
}

/// What runs need: the plugin, caches of this shape, a folder.
pub struct Lab {
    geometry: Geometry,
    plugin: PathBuf,
    folder: TempDir,
}

impl Lab {
    /// One with these caches.
    ///
    /// # Errors
    ///
    /// The plugin can't be built, or there is no room for the runs' files.
    pub fn new(geometry: Geometry) -> Result<Self, Failure> {
        Ok(Self {
            geometry,
            plugin: build_plugin("caches")?,
            folder: tempfile::tempdir().map_err(|error| cannot(&error))?,
        })
    }

    /// Runs work in all settings.
    ///
    /// # Errors
    ///
    /// As for [`measure`]; or the turns of the CPUs are not longer where they should be.
    pub fn settings(&self, work: Work) -> Result<[Run; 6], Failure> {
        let [plain, coloured] = [false, true].map(|coloured| self.turns(work, coloured));
        let ([a, b, c], [d, e, f]) = (plain?, coloured?);
        Ok([a, b, c, d, e, f])
    }

    /// Runs work alone and beside others, with turns of both lengths.
    fn turns(&self, work: Work, coloured: bool) -> Result<[Run; 3], Failure> {
        let alone = self.run(work, Setting::of(None, coloured), 0)?;
        let beside = |tick| {
            self.run(
                work,
                Setting::of(Some(tick), coloured),
                alone.vm.instructions,
            )
        };
        let [short, long] = TICKS.map(beside);
        let (short, long) = (short?, long?);
        // Otherwise two columns would show one thing.
        if long.turn < 2 * short.turn {
            let why = format!(
                "its CPUs had turns of {} instructions, which were to be longer than {}",
                long.turn, short.turn
            );
            let what = format!("{} was not measured", work.name);
            return Err(Failure::failed(what, why, ""));
        }
        Ok([alone, short, long])
    }

    /// Measures the latency of a timer with a period of so many microseconds in each setting.
    ///
    /// # Errors
    ///
    /// As for [`measure`]; or no interrupt has come.
    pub fn latencies(&self, period: u32) -> Result<Vec<Latency>, Failure> {
        let rounds = ROUNDS * period / 100;
        let argument = format!("stride=128 tick={period} latency=1 rounds={rounds}");
        let mut alone = 0;
        let mut all = Vec::new();
        for setting in Setting::LATENCIES {
            let words = vec![(MEASURED, argument.clone())];
            let counted = self.count((SYSTEM, GUEST), words, setting, alone)?;
            let run = judged(TIMER, setting, &counted)?;
            if setting.tick.is_none() {
                alone = run.vm.instructions;
            }
            all.push(latency(setting, &counted.latencies)?);
        }
        Ok(all)
    }

    /// Runs work in a setting. `alone`: its instructions, which say for how long others have to disturb it.
    ///
    /// # Errors
    ///
    /// As for [`measure`].
    pub fn run(&self, work: Work, setting: Setting, alone: u64) -> Result<Run, Failure> {
        judged(work, setting, &self.counted(work, setting, alone)?)
    }

    /// Runs the works of Linux in a setting, one behind the other.
    fn on_linux(&self, setting: Setting, alone: u64) -> Result<Vec<Run>, Failure> {
        let counted = self.count((LINUX_SYSTEM, LINUX_GUEST), Vec::new(), setting, alone)?;
        let works = (LINUX_FIGURE..).zip(LINUX_WORKS);
        works
            .map(|(figure, work)| judged_as(figure, work, setting, &counted))
            .collect()
    }

    /// Runs the works of Linux in all settings; the runs of each work follow one another.
    ///
    /// # Errors
    ///
    /// As for [`measure`].
    pub fn linux(&self) -> Result<Vec<Run>, Failure> {
        let mut settings = Vec::new();
        let mut alone = 0;
        for (n, setting) in Setting::ALL.into_iter().enumerate() {
            let step = Step::start(format!("Linux: {} of {}", n + 1, Setting::ALL.len()));
            let runs = self.on_linux(setting, alone)?;
            drop(step);
            if setting.tick.is_none() {
                alone = runs.iter().map(|run| run.vm.instructions).sum();
            }
            settings.push(runs);
        }
        let of = |work: usize| settings.iter().filter_map(move |runs| runs.get(work));
        let works = 0..LINUX_WORKS.len();
        Ok(works.flat_map(of).cloned().collect())
    }

    fn counted(&self, work: Work, setting: Setting, alone: u64) -> Result<Counted, Failure> {
        let words = vec![(MEASURED, work.argument.to_owned())];
        self.count((SYSTEM, GUEST), words, setting, alone)
    }

    fn count(
        &self,
        (system, guest): (&str, &str),
        mut words: Vec<(&'static str, String)>,
        setting: Setting,
        alone: u64,
    ) -> Result<Counted, Failure> {
        let on_linux = guest == LINUX_GUEST;
        let others = match setting.tick {
            None => "tick=100 ms=0".to_owned(),
            // They wake before the program begins, and the kernel has work of its own.
            Some(tick) if on_linux => {
                let ms = 200 + milliseconds(2 * alone);
                format!("after={AFTER} tick={tick} ms={ms}")
            }
            Some(tick) => format!("tick={tick} ms={}", milliseconds(alone)),
        };
        let folder = self.folder.path();
        words.push((OTHERS, others));
        if setting.own_cache {
            words.extend(clusters(&self.geometry));
        } else if setting.coloured {
            words.extend(colours(&self.geometry, setting.el2));
        }
        let words: Vec<_> = words.iter().map(|(old, new)| (*old, &**new)).collect();
        let built = variant(system, &words, folder)?;
        let guest = Program::read(&cross_build::guest(guest)?)?;
        let marks = guest.marks("mark_begin", "mark_end")?;
        let output = folder.join("counted.json");
        let config = Config {
            output: output.clone(),
            geometry: self.geometry,
            marks: Some([marks.begin, marks.end]),
            from_mark: on_linux,
            clusters: if setting.own_cache {
                vec![VM + 1]
            } else {
                Vec::new()
            },
        };
        let mut qemu = board(&built, 0)?;
        let argument = configure(&self.plugin, folder, "caches", &config, &output)?;
        qemu.plugins.push(argument);
        let said = run_to_end(&qemu, LAST)?;
        if said.contains("FAIL") || said.matches("DONE").count() != built.planned.vms.len() {
            return Err(Failure::failed("a guest has failed", said, ""));
        }
        let text = std::fs::read(&output).map_err(|error| cannot(&error))?;
        serde_json::from_slice(&text).map_err(|error| cannot(&error))
    }
}

fn cannot(error: &dyn std::fmt::Display) -> Failure {
    Failure::environment("cannot prepare the measurement", error, "")
}

/// What the description says of colours: half of them for the VM that is measured, of which EL2 has a quarter, and a quarter for each other.
fn colours(geometry: &Geometry, has_el2: bool) -> [(&'static str, String); 5] {
    let count = geometry.colours();
    let (half, quarter, el2) = (count / 2, count / 4, count / 8);
    let own = |row: &str, first, last| format!("{row}\ncolours = \"{first}-{last}\"");
    let of_el2 = match has_el2 {
        true => format!("[el2]\ncolours = \"{}-{}\"\n\n", count - el2, count - 1),
        false => String::new(),
    };
    let shared = |row, first| own(row, first, first + quarter - 1) + "\nshare_colours = true";
    [
        ("[board]", format!("{of_el2}[board]\ncolours = {count}")),
        ("pcpus = [0]", own("pcpus = [0]", half, count - el2 - 1)),
        ("pcpus = [1]", shared("pcpus = [1]", 0)),
        ("pcpus = [2]", shared("pcpus = [2]", quarter)),
        ("pcpus = [3]", shared("pcpus = [3]", 0)),
    ]
}

/// The same where the first CPU has a cache of its own: the VM that is measured has all of it but an eighth, which EL2 has of both caches, and the others have the same colours.
fn clusters(geometry: &Geometry) -> [(&'static str, String); 5] {
    let count = geometry.colours();
    let own = |row: &str| format!("{row}\ncolours = \"0-{}\"", count - count / 8 - 1);
    let shared = |row| own(row) + "\nshare_colours = true";
    let board =
        format!("[el2]\ncache = \"1/8\"\n\n[board]\ncaches = [\"0: {count}\", \"1-3: {count}\"]");
    [
        ("[board]", board),
        ("pcpus = [0]", own("pcpus = [0]")),
        ("pcpus = [1]", shared("pcpus = [1]")),
        ("pcpus = [2]", shared("pcpus = [2]")),
        ("pcpus = [3]", shared("pcpus = [3]")),
    ]
}

/// The latency in a setting; the first interrupts find nothing in the caches yet.
fn latency(setting: Setting, all: &[u64]) -> Result<Latency, Failure> {
    const FIRST: usize = 2;
    let counted = all.get(FIRST..).filter(|counted| !counted.is_empty());
    let counted = counted.ok_or_else(|| {
        let why = format!("{} interrupts came", all.len());
        Failure::failed("the latency of a timer was not measured", why, "")
    })?;
    let mut sorted = counted.to_vec();
    sorted.sort_unstable();
    Ok(Latency {
        setting,
        interrupts: counted.len(),
        median: sorted.get((sorted.len() - 1) / 2).copied().unwrap_or(0),
        mean: counted.iter().sum::<u64>() as f64 / counted.len() as f64,
        most: counted.iter().copied().max().unwrap_or(0),
    })
}

/// Milliseconds for which the others disturb work of so many instructions. Time is what all four CPUs execute, a nanosecond each; the work is done twice, once
/// uncounted, and what it takes to start comes before.
fn milliseconds(instructions: u64) -> u64 {
    20 + instructions * 4 * 2 * 3 / 2 / 1_000_000
}

/// The run, if the model agrees with QEMU about each address, and the others were there to the end.
fn judged(work: Work, setting: Setting, counted: &Counted) -> Result<Run, Failure> {
    judged_as(FIGURE, work, setting, counted)
}

fn judged_as(figure: u64, work: Work, setting: Setting, counted: &Counted) -> Result<Run, Failure> {
    let wrong = |why: String| Failure::failed(format!("{} was not measured", work.name), why, "");
    if counted.wrong != 0 || counted.unknown_walks != 0 || counted.checked == 0 {
        return Err(wrong(format!(
            "of {} addresses the model has {} wrong, and {} walks that it could not make",
            counted.checked, counted.wrong, counted.unknown_walks
        )));
    }
    let owners = counted.figures.get(&figure);
    let of = |owner| owners.and_then(|owners| owners.get(&owner).copied());
    let vm = of(VM).ok_or_else(|| wrong("it has no marks".to_owned()))?;
    for other in VM + 1..=VM + 3 {
        let instructions = of(other).unwrap_or_default().instructions;
        let there = instructions >= vm.instructions / 2;
        if there != setting.tick.is_some() {
            return Err(wrong(format!(
                "VM {other} has executed {instructions} instructions beside {} of it",
                vm.instructions
            )));
        }
    }
    let all = owners.iter().flat_map(|owners| owners.values());
    let all: u64 = all.map(|counts| counts.instructions).sum();
    let turns = counted.turns.get(&figure).copied().unwrap_or(0);
    Ok(Run {
        work,
        setting,
        vm,
        el2: of(EL2).unwrap_or_default(),
        turn: all / turns.max(1),
        cycles: vm.cycles(&counted.geometry),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(instructions: [u64; 4]) -> Counted {
        let counts = |instructions| Counts {
            instructions,
            l2: 10,
            l2_misses: 2,
            ..Counts::default()
        };
        let owners = (VM..).zip(instructions.map(counts)).collect();
        Counted {
            geometry: Geometry::CORTEX_A53,
            all: Default::default(),
            figures: [(FIGURE, owners)].into(),
            turns: [(FIGURE, 10)].into(),
            latencies: Vec::new(),
            cpus: 4,
            checked: 5,
            wrong: 0,
            unknown_walks: 0,
        }
    }

    #[test]
    fn a_run_counts_if_others_were_there_as_they_should() {
        let [solo, beside, ..] = Setting::ALL;
        let judge = |setting, counted: &Counted| judged(WORKS[0], setting, counted);
        let run = judge(solo, &counted([1000, 0, 0, 0])).unwrap();
        assert_eq!(run.cycles, 1000 + 10 * 13 + 2 * 150);
        assert_eq!(run.turn, 100);
        assert!(judge(beside, &counted([1000, 900, 900, 900])).is_ok());
        assert!(judge(beside, &counted([1000, 900, 900, 100])).is_err());
        assert!(judge(solo, &counted([1000, 900, 0, 0])).is_err());
    }

    #[test]
    fn a_model_that_contradicts_qemu_measures_nothing() {
        let good = counted([1000, 0, 0, 0]);
        for bad in [
            Counted {
                wrong: 1,
                ..good.clone()
            },
            Counted {
                unknown_walks: 1,
                ..good.clone()
            },
            Counted {
                checked: 0,
                ..good.clone()
            },
            Counted {
                figures: Default::default(),
                ..good
            },
        ] {
            assert!(judged(WORKS[0], Setting::ALL[0], &bad).is_err());
        }
    }

    #[test]
    fn others_last_longer_than_the_work() {
        // A million instructions beside three others, twice: 8 ms.
        assert!(milliseconds(1_000_000) > 8 + 8);
    }

    #[test]
    fn one_interrupt_out_of_many_changes_the_mean_and_not_the_median() {
        let setting = Setting {
            tick: None,
            el2: false,
            coloured: false,
            own_cache: false,
        };
        let of = |all: &[u64]| latency(setting, all).unwrap();
        let long = of(&[900, 900, 301, 305, 1900, 300, 302]);
        assert_eq!((long.interrupts, long.median, long.most), (5, 302, 1900));
        assert!(long.mean > 600.0);
        assert_eq!(of(&[900, 900, 310, 300]).median, 300);
        assert!(latency(setting, &[900, 900]).is_err());
    }
}
