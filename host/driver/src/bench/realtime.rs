//! Overhead of Bulkhead for a real-time Linux under cyclictest: EL2's part of its time when it has a CPU to itself, and
//! how late it wakes beside a Linux that never sleeps on the same CPU, against the bare board.

use std::collections::BTreeMap;
use std::path::Path;

use bulkhead_profiler::{Exits, Profile};

use bulkhead_model::failure::Failure;
use bulkhead_runner::profile::Instrument;
use bulkhead_runner::profile::Program;
use bulkhead_runner::progress::Step;

use super::budgets::Budget;
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
/// Seeds, each for another course of events: it shifts when latency is measured, to places that have nothing to do with
/// a period of either.
const SEEDS: [u32; 5] = [1003, 2719, 4337, 5623, 7919];
/// Shift of the clock beside a load: an instruction takes 2^3 nanoseconds, since full work for seconds costs an
/// emulator more than sleep.
const SHIFT: u8 = 3;
/// Words in the order in which they must be said: the load is under way as long as latency is measured.
const ORDER: [&str; 4] = ["load begins", "rt begins", " Max:", "load ends"];
/// The last words of the kernel.
const LAST: &str = "Power down";

/// Measurements of a real-time Linux.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Realtime {
    /// Exits of the longer run that the shorter one did not have, by kind.
    pub exits: BTreeMap<String, Exits>,
    /// Time between the ends of the two, in nanoseconds, each of which an instruction could have taken.
    pub time: u64,
    /// Most microseconds that cyclictest woke late, by seed: on the bare board alone, and beside the load.
    pub latest: Vec<[u64; 2]>,
}

impl Realtime {
    /// Builds the systems and runs them all.
    ///
    /// # Errors
    ///
    /// Something can't be built, fetched or run, or a Linux does not do what is measured.
    pub fn measure() -> Result<Self, Failure> {
        let folder = tempfile::tempdir().map_err(|error| cannot(&error))?;
        let step = Step::start("measuring: what EL2 takes of a real-time Linux");
        let [short, long] = LOOPS.map(|loops| alone(loops, folder.path()));
        let exits = more(&short?.lengths, &long?.lengths);
        drop(step);
        let step = Step::start("measuring: how late a real-time Linux wakes beside a load");
        let latest = SEEDS.iter().map(|seed| beside(*seed, folder.path()));
        let latest = latest.collect::<Result<_, _>>()?;
        drop(step);
        Ok(Self {
            exits,
            time: u64::from(LOOPS[1] - LOOPS[0]) * INTERVAL,
            latest,
        })
    }

    /// Returns the figure of this budget.
    pub(super) fn figure(&self, budget: &Budget) -> Result<Figure, Failure> {
        let sum = |part: fn(&Exits) -> u64| self.exits.values().map(part).sum::<u64>() as f64;
        let (count, total) = (sum(|exits| exits.count), sum(|exits| exits.total));
        // Each course of events beside the same one on the bare board: the worst counts.
        let ratios = self.latest.iter().filter(|[native, _]| *native > 0);
        let ratios = ratios.map(|[native, guest]| *guest as f64 / *native as f64);
        let value = match budget.name.as_str() {
            "rt_share" if self.time > 0 => Some(total / self.time as f64 * 1e6),
            "rt_exit_mean" if count > 0.0 => Some(total / count),
            "rt_exit_longest" => self
                .exits
                .values()
                .map(|exits| exits.max as f64)
                .max_by(f64::total_cmp),
            "rt_latency_ratio" => ratios.max_by(f64::total_cmp).map(|worst| worst * 100.0),
            _ => None,
        };
        let value = value.ok_or_else(|| {
            let what = format!("`{}` was not measured", budget.name);
            Failure::failed(what, "", "")
        })?;
        let mut figure = Figure::new(budget, value);
        if budget.name == "rt_latency_ratio" {
            figure.note = "latest wake-up in us, an instruction in 8 ns".to_owned();
            for (seed, [native, guest]) in SEEDS.iter().zip(&self.latest) {
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

/// Returns the largest lateness natively and beside the load.
fn beside(seed: u32, folder: &Path) -> Result<[u64; 2], Failure> {
    let built = variant(
        SHARED,
        &[("sleep 18.1003", &format!("sleep 18.{seed}"))],
        folder,
    )?;
    let native = run_to_end(&native(&built, SHIFT, folder)?, LAST)?;
    let shared = run_to_end(&board(&built, SHIFT)?, LAST)?;
    if !in_order(&shared, &ORDER) {
        let why = format!("it has to say {ORDER:?} in this order");
        return Err(Failure::failed(
            "the load was not there all the time",
            why,
            "",
        ));
    }
    let most = |said: &str| {
        let why = "it said no maximum";
        after(said, " Max:").ok_or_else(|| Failure::failed("cyclictest did not end", why, ""))
    };
    Ok([most(&native)?, most(&shared)?])
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
    let digits = rest.trim_start().split(|c: char| !c.is_ascii_digit());
    digits.into_iter().next()?.parse().ok()
}

fn in_order(said: &str, words: &[&str]) -> bool {
    let places: Option<Vec<usize>> = words.iter().map(|word| said.find(word)).collect();
    places.is_some_and(|places| places.is_sorted())
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
        };
        assert_eq!(value(&realtime, "rt_share"), 201.0);
        assert!((value(&realtime, "rt_exit_mean") - 2010.0 / 21.0).abs() < 1e-9);
        assert_eq!(value(&realtime, "rt_exit_longest"), 400.0);
        assert_eq!(value(&realtime, "rt_latency_ratio"), 162.0);
    }

    #[test]
    fn nothing_measured_is_no_figure() {
        let budgets = Budgets::load().expect("the project's budgets are right");
        for name in [
            "rt_share",
            "rt_exit_mean",
            "rt_exit_longest",
            "rt_latency_ratio",
        ] {
            let budget = budgets.get(name).expect("there");
            assert!(Realtime::default().figure(budget).is_err());
        }
    }

    #[test]
    fn numbers_and_order_are_found_in_what_is_said() {
        let said = "load begins\r\nrt begins\n[rt] T: 0 (  110) P:95 I:1000 C:   3500 Min:      4 Act:    5 Avg:    6 Max:      50\nload ends\n";
        assert_eq!(
            (after(said, " C:"), after(said, " Max:")),
            (Some(3500), Some(50))
        );
        assert_eq!(after(said, " Nothing:"), None);
        assert!(in_order(said, &ORDER));
        assert!(!in_order(&said.replace("load ends", ""), &ORDER));
        assert!(!in_order(&format!("rt begins {said}"), &ORDER));
    }
}
