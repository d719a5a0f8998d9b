//! Overhead of Bulkhead for a real-time Linux under cyclictest: EL2's part of its time when it has a CPU to itself, and
//! how late it wakes beside a Linux that never sleeps on the same CPU, against the bare board.

use std::collections::BTreeMap;
use std::path::Path;

use bulkhead_profiler::{Exits, Profile};

use bulkhead_model::failure::Failure;
use bulkhead_runner::profile::Instrument;
use bulkhead_runner::profile::Program;
use bulkhead_runner::progress::Step;

use super::budgets::{Budget, Gic};
use super::ending::run_to_end;
use super::figure::{Figure, Part};
use super::native::{board, native};
use super::variant::variant;

const ALONE: &str = "lab/systems/bench-rt.toml";
const SHARED: &str = "lab/systems/bench-rt-share.toml";
/// Wake-ups of cyclictest alone, one each millisecond: in the description, and in the longer run.
const LOOPS: [u32; 2] = [500, 3500];
/// Nanoseconds from one wake-up to the next.
const INTERVAL: u64 = 1_000_000;
/// Seeds of the system, each for another course of events: it shifts when latency is measured, to places that have nothing to do with
/// a period of either. All in one life of the two kernels, whose starts take as long as a measurement.
const SEEDS: [u32; 5] = [1003, 2719, 4337, 5623, 7919];
/// Seconds of the load, and those for each seed.
const LOAD_S: usize = 10;
const LOAD_S_OF_SEED: usize = 14;
/// Shift of the clock beside a load: an instruction takes 2^3 nanoseconds, since full work for seconds costs an
/// emulator more than sleep.
const SHIFT: u8 = 3;
/// What cyclictest says at its end, with the microseconds that it woke late at most.
const MOST: &str = " Max:";
/// The last words of the kernel.
const LAST: &str = "Power down";

/// What is measured of a real-time Linux. Each takes longer than all that comes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Nothing.
    Nothing,
    /// Of how late it wakes one course of events, on a GICv3. That takes a minute less for each other one.
    Short,
    /// All.
    All,
}

/// Measurements of a real-time Linux.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Realtime {
    /// Exits of the longer run that the shorter one did not have, by kind.
    pub exits: BTreeMap<String, Exits>,
    /// Time between the ends of the two, in nanoseconds, each of which an instruction could have taken.
    pub time: u64,
    /// Most microseconds that cyclictest woke late on a GICv3, by seed: on the bare board alone, and beside the load.
    pub latest: Vec<[u64; 2]>,
    /// The same on a GICv2; empty if it was not measured there.
    pub latest_gicv2: Vec<[u64; 2]>,
}

impl Realtime {
    /// Builds the systems and runs them.
    ///
    /// # Errors
    ///
    /// Something can't be built, fetched or run, or a Linux does not do what is measured.
    pub fn measure(extent: Extent) -> Result<Option<Self>, Failure> {
        if extent == Extent::Nothing {
            return Ok(None);
        }
        let folder = tempfile::tempdir().map_err(|error| cannot(&error))?;
        let step = Step::start("measuring: what EL2 takes of a real-time Linux");
        let [short, long] = LOOPS.map(|loops| alone(loops, folder.path()));
        let exits = more(&short?.lengths, &long?.lengths);
        drop(step);
        let all = extent == Extent::All;
        let seeds = if all { &SEEDS[..] } else { &SEEDS[..1] };
        let latest_gicv2 = all.then(|| beside(Gic::V2, seeds, folder.path()));
        Ok(Some(Self {
            exits,
            time: u64::from(LOOPS[1] - LOOPS[0]) * INTERVAL,
            latest: beside(Gic::V3, seeds, folder.path())?,
            latest_gicv2: latest_gicv2.transpose()?.unwrap_or_default(),
        }))
    }

    /// Returns the figure of this budget.
    pub(super) fn figure(&self, budget: &Budget) -> Result<Figure, Failure> {
        let sum = |part: fn(&Exits) -> u64| self.exits.values().map(part).sum::<u64>() as f64;
        let (count, total) = (sum(|exits| exits.count), sum(|exits| exits.total));
        let latest = match budget.gic {
            Gic::V2 => &self.latest_gicv2,
            Gic::V3 => &self.latest,
        };
        // Each course of events beside the same one on the bare board: the worst counts.
        let ratios = latest.iter().filter(|[native, _]| *native > 0);
        let ratios = ratios.map(|[native, guest]| *guest as f64 / *native as f64);
        let value = match budget.name.as_str() {
            "rt_share" if self.time > 0 => Some(total / self.time as f64 * 1e6),
            "rt_exit_mean" if count > 0.0 => Some(total / count),
            "rt_exit_longest" => self
                .exits
                .values()
                .map(|exits| exits.max as f64)
                .max_by(f64::total_cmp),
            "rt_latency_ratio" | "rt_latency_ratio_v2" => {
                ratios.max_by(f64::total_cmp).map(|worst| worst * 100.0)
            }
            _ => None,
        };
        let value = value.ok_or_else(|| {
            let what = format!("`{}` was not measured", budget.name);
            Failure::failed(what, "", "")
        })?;
        let mut figure = Figure::new(budget, value);
        if budget.name.starts_with("rt_latency_ratio") {
            figure.note = "latest wake-up in us, an instruction in 8 ns".to_owned();
            for (seed, [native, guest]) in SEEDS.iter().zip(latest) {
                let name =
                    format!("with a load beside it; {native} on the bare board (seed {seed})");
                let value = *guest;
                figure.parts.push(Part { name, value });
            }
        } else if budget.name == "rt_share" {
            figure.note = format!("EL2 in {} ms", self.time / 1_000_000);
            figure.parts = self.exits.iter().map(part).collect();
        }
        Ok(figure)
    }
}

fn part((kind, exits): (&String, &Exits)) -> Part {
    Part {
        name: format!(
            "instructions in {} exits: {kind}, {} at most",
            exits.count, exits.max
        ),
        value: exits.total,
    }
}

pub(super) fn cannot(error: &dyn std::fmt::Display) -> Failure {
    Failure::environment("cannot prepare the measurement", error, "")
}

/// Runs cyclictest alone; returns what EL2 did from its entry to the end.
fn alone(loops: u32, folder: &Path) -> Result<Profile, Failure> {
    let [short, _] = LOOPS;
    let new = format!("-l {loops:04}");
    let built = variant(ALONE, &[(&format!("-l {short:04}"), &new)], folder)?;
    let el2 = Program::read(&built.el2)?;
    let instrument = Instrument::new(&el2);
    let attached = instrument.attach(folder)?;
    let mut qemu = board(&built, 0)?;
    qemu.plugins.push(attached.argument.clone());
    let said = run_to_end(&qemu, LAST)?;
    let wakeups = after(&said, " C:");
    if wakeups != Some(loops.into()) {
        let why = format!("it woke {wakeups:?} times and not {loops}");
        return Err(Failure::failed(
            "cyclictest did not run to its end",
            why,
            "",
        ));
    }
    attached.profile()
}

/// Returns the largest lateness natively and beside the load, by seed.
fn beside(gic: Gic, seeds: &[u32], folder: &Path) -> Result<Vec<[u64; 2]>, Failure> {
    let _step = Step::start("measuring: how late a real-time Linux wakes beside a load");
    let count = seeds.len();
    let words = |seeds: &[u32]| {
        seeds
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let load = |count| format!("--timeout {}s", LOAD_S + LOAD_S_OF_SEED * count);
    // What the system does not have is an error.
    let seeds = [words(&SEEDS), words(seeds)];
    let load = [load(SEEDS.len()), load(count)];
    let version = match gic {
        Gic::V2 => "gic = 2",
        Gic::V3 => "gic = 3",
    };
    let words = [
        (seeds[0].as_str(), seeds[1].as_str()),
        (load[0].as_str(), load[1].as_str()),
        ("gic = 3", version),
    ];
    let built = variant(SHARED, &words, folder)?;
    let native = latest(&run_to_end(&native(&built, SHIFT, folder)?, LAST)?, count)?;
    let shared = run_to_end(&board(&built, SHIFT)?, LAST)?;
    if !is_loaded(&shared) {
        let why = "it has to begin before the first measurement, and to end behind the last";
        return Err(Failure::failed(
            "the load was not there all the time",
            why,
            "",
        ));
    }
    let both = native.into_iter().zip(latest(&shared, count)?);
    Ok(both.map(|(native, shared)| [native, shared]).collect())
}

/// What cyclictest said each time, once for each of `seeds`.
fn latest(said: &str, seeds: usize) -> Result<Vec<u64>, Failure> {
    let most: Option<Vec<u64>> = said.split(MOST).skip(1).map(number).collect();
    most.filter(|most| most.len() == seeds).ok_or_else(|| {
        let times = said.matches(MOST).count();
        let why = format!("it said {times} maxima, and there are {seeds} seeds");
        Failure::failed("cyclictest did not end each time", why, "")
    })
}

/// Whether the load was under way as long as latency was measured.
fn is_loaded(said: &str) -> bool {
    let first = |word| said.find(word);
    match (
        first("load begins"),
        first("rt begins"),
        said.rfind(MOST),
        first("load ends"),
    ) {
        (Some(load), Some(begins), Some(last), Some(ends)) => {
            load < begins && begins < last && last < ends
        }
        _ => false,
    }
}

/// Number of exits by their instructions, of each kind.
pub(super) type Lengths = BTreeMap<String, BTreeMap<u64, u64>>;

/// Returns the exits of `long` beyond those of `short`, by kind.
pub(super) fn more(short: &Lengths, long: &Lengths) -> BTreeMap<String, Exits> {
    let mut more: BTreeMap<String, Exits> = BTreeMap::new();
    // A slice is what EL2 does for a VM that is not there: the report of its end.
    let exits = long.iter().filter(|(kind, _)| *kind != "slice");
    for (kind, lengths) in exits {
        let before = |length| short.get(kind).and_then(|all| all.get(length)).copied();
        for (length, count) in lengths {
            let count = count.saturating_sub(before(length).unwrap_or(0));
            if count > 0 {
                let exits = more.entry(kind.clone()).or_default();
                exits.count += count;
                exits.total += count * length;
                exits.max = *length;
            }
        }
    }
    more
}

/// The number behind the last `word`.
pub(super) fn after(said: &str, word: &str) -> Option<u64> {
    let (_, rest) = said.rsplit_once(word)?;
    number(rest)
}

/// The number at the start of `text`, behind blanks.
fn number(text: &str) -> Option<u64> {
    let digits = text.trim_start().split(|c: char| !c.is_ascii_digit());
    digits.into_iter().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::budgets::Budgets;
    use super::*;

    fn lengths(kinds: &[(&str, &[(u64, u64)])]) -> Lengths {
        let kinds = kinds.iter();
        kinds
            .map(|(kind, lengths)| ((*kind).to_owned(), lengths.iter().copied().collect()))
            .collect()
    }

    fn value(realtime: &Realtime, name: &str) -> f64 {
        let budgets = Budgets::load().expect("the project's budgets are right");
        let budget = budgets.get(name).expect("there");
        realtime.figure(budget).expect("measured").value
    }

    #[test]
    fn figures_are_of_what_the_longer_run_has_more() {
        let short = lengths(&[("irq 27", &[(80, 10)]), ("uart", &[(4000, 5)])]);
        let long = lengths(&[
            ("irq 27", &[(80, 29), (90, 1)]),
            ("uart", &[(400, 1), (4000, 5)]),
            ("slice", &[(3000, 1)]),
        ]);
        let realtime = Realtime {
            exits: more(&short, &long),
            time: 10_000_000,
            latest: vec![[60, 70], [72, 66], [50, 81]],
            latest_gicv2: vec![[60, 90], [50, 50]],
        };
        assert_eq!(value(&realtime, "rt_share"), 201.0);
        assert!((value(&realtime, "rt_exit_mean") - 2010.0 / 21.0).abs() < 1e-9);
        assert_eq!(value(&realtime, "rt_exit_longest"), 400.0);
        assert_eq!(value(&realtime, "rt_latency_ratio"), 162.0);
        assert_eq!(value(&realtime, "rt_latency_ratio_v2"), 150.0);
    }

    #[test]
    fn nothing_measured_is_no_figure() {
        let budgets = Budgets::load().expect("the project's budgets are right");
        for name in [
            "rt_share",
            "rt_exit_mean",
            "rt_exit_longest",
            "rt_latency_ratio",
            "rt_latency_ratio_v2",
        ] {
            let budget = budgets.get(name).expect("there");
            assert!(Realtime::default().figure(budget).is_err());
        }
    }

    #[test]
    fn numbers_and_order_are_found_in_what_is_said() {
        let cyclictest = "rt begins\n[rt] T: 0 (  110) P:95 I:1000 C:   3500 Min:      4 Act:    5 Avg:    6 Max:      5";
        let times: Vec<String> = (0..SEEDS.len())
            .map(|n| format!("{cyclictest}{n}\n"))
            .collect();
        let said = format!("load begins\r\n{}load ends\n", times.concat());
        assert_eq!(
            (after(&said, " C:"), after(&said, " Nothing:")),
            (Some(3500), None)
        );
        assert_eq!(
            latest(&said, SEEDS.len()).expect("all"),
            [50, 51, 52, 53, 54]
        );
        for times in [&times[1..], &[&times[..], &times[..1]].concat()] {
            assert!(latest(&times.concat(), SEEDS.len()).is_err());
        }
        assert!(is_loaded(&said));
        assert!(!is_loaded(&said.replace("load ends", "")));
        assert!(!is_loaded(&format!("rt begins {said}")));
        assert!(!is_loaded(&format!("{said}{cyclictest}")));
    }
}
