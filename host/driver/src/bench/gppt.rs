//! Cost of an interrupt that a VM takes itself: the same program on the bare board, as such a VM, and through the
//! virtual GIC.

use std::collections::BTreeMap;
use std::path::Path;

use bulkhead_profiler::{Profile, Visit};

use bulkhead_model::checkout;
use bulkhead_model::failure::Failure;
use bulkhead_runner::build::{Built, build};
use bulkhead_runner::columns::{Column, Columns};
use bulkhead_runner::cross_build;
use bulkhead_runner::profile::{El2, Instrument, Program};
use bulkhead_runner::progress::Step;

use super::budgets::{Budget, Gic};
use super::ending::run_to_end;
use super::figure::{Figure, Part};
use super::native::{bare, board};
use super::subject::operations::{ACCESSES, BEGIN_SYMBOL, END_SYMBOL, OPERATIONS};

/// The modes with each version of the GIC in which a VM takes its interrupts, each with its system. The first of a version runs on a
/// board without firmware: the bare board, with which all are compared, is that one.
const MODES: [(Gic, &str, &str); 7] = [
    (Gic::V2, "gicv2", "lab/systems/bench-gppt-gicv2.toml"),
    // Called by SPIs.
    (
        Gic::V2,
        "gicv2 with firmware",
        "lab/systems/bench-gppt-gicv2-el3.toml",
    ),
    (Gic::V3, "recoverable", "lab/systems/bench-gppt.toml"),
    (
        Gic::V3,
        "pmr-trapped",
        "lab/systems/bench-gppt-trapped.toml",
    ),
    (Gic::V3, "pmr-direct", "lab/systems/bench-gppt-direct.toml"),
    (Gic::V3, "revocable", "lab/systems/bench-gppt-el3.toml"),
    (
        Gic::V3,
        "revocable-pmr-trapped",
        "lab/systems/bench-gppt-el3-trapped.toml",
    ),
];
/// The systems with interrupts through the virtual GIC.
const VGIC: [(Gic, &str); 2] = [
    (Gic::V2, "lab/systems/bench-gppt-vgic-gicv2.toml"),
    (Gic::V3, "lab/systems/bench-gppt-vgic.toml"),
];
/// Name of the guest program.
const GUEST: &str = "irq-latency";
/// Start of its last line.
const LAST: &str = "irq-latency: ";

/// Latencies of one kind of interrupt, in ticks of which each is an instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Late {
    /// Least of 1000.
    pub min: u64,
    /// Of all together.
    pub sum: u64,
    /// Most of 1000.
    pub max: u64,
}

/// One run of the program: latencies by kind of interrupt, and what EL2 executed for them all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// By name of the kind.
    pub late: BTreeMap<String, Late>,
    /// Exits and instructions of EL2 between the marks of interrupts.
    pub el2: (u64, u64),
    /// Instructions of EL2 between the marks of accesses to the GIC, by their numbers.
    pub accesses: BTreeMap<u64, u64>,
}

/// Measurements of a mode in which a VM takes its interrupts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mode {
    /// Its name, as plans show it, and what else tells it from others.
    pub name: &'static str,
    /// The run of the program.
    pub taken: Taken,
    /// Instructions from when another pCPU that runs such a VM is wanted to the interrupt that goes there, and back to
    /// the pCPU that wants it.
    pub kick: u64,
}

/// All runs with a version of the GIC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpptRuns {
    /// Without a hypervisor.
    pub native: Taken,
    /// Taken by the VM itself.
    pub modes: Vec<Mode>,
    /// Through the virtual GIC.
    pub vgic: Taken,
}

/// Most runs of a system until two are alike.
const RUNS: u32 = 5;

/// The function of EL2 that makes a pCPU come to EL2, and the functions of the GIC that follow it.
const KICK: [&str; 4] = [
    "hw::gic::gppt::kick",
    "hw::gic::revoke::",
    // The last two: by SPI. The last one with a GICv3 only.
    "hw::gic::call_spis::write",
    "hw::gic::by_spi::call",
];

/// The functions that call the first of them: the second is that of the VM's pCPU, which kicks itself.
const CALLERS: [&str; 2] = ["mailbox::send", "el2_pcpu"];

/// Those of [`KICK`] that EL2 has on a board with this GIC.
fn kick_names(gic: Gic) -> &'static [&'static str] {
    match gic {
        Gic::V2 => &KICK[..3],
        Gic::V3 => &KICK,
    }
}

impl GpptRuns {
    /// Builds all systems, and runs the program in each and on the bare board.
    ///
    /// # Errors
    ///
    /// Something can't be built or run, or the program does not get to its end.
    pub fn measure(gic: Gic) -> Result<Self, Failure> {
        let built = |system: &str| build(&checkout::root().join(system)).map_err(Failure::from);
        let vgic = VGIC.iter().find(|(version, _)| *version == gic);
        let vgic = built(vgic.map_or("", |(_, system)| system))?;
        let modes = MODES.iter().filter(|(version, ..)| *version == gic);
        let modes = modes.map(|(_, name, system)| Ok((*name, built(system)?)));
        let modes = modes.collect::<Result<Vec<_>, Failure>>()?;
        let folder = tempfile::tempdir().map_err(|error| cannot(&error))?;
        let step = Step::start("measuring: interrupts that a VM takes itself");
        let mut measured = Self {
            vgic: agreed(|| guest(&vgic, folder.path()))?,
            ..Self::default()
        };
        if let Some((_, first)) = modes.first() {
            measured.native = agreed(|| native(first, folder.path()))?;
        }
        for (name, built) in &modes {
            measured.modes.push(Mode {
                name,
                taken: agreed(|| guest(built, folder.path()))?,
                kick: kick(gic, built, folder.path())?,
            });
        }
        drop(step);
        Ok(measured)
    }

    /// The largest difference to the bare board that a VM sees in any mode, and what EL2 executes for an interrupt, in
    /// instructions. `None` if not all was measured.
    fn added(&self) -> Option<f64> {
        let native = &self.native.late;
        if native.is_empty() || self.modes.is_empty() {
            return None;
        }
        let all = f64::from(OPERATIONS) * native.len() as f64;
        self.modes.iter().try_fold(0.0, |added, mode| {
            let own = &mode.taken.late;
            if !native.keys().eq(own.keys()) {
                return None;
            }
            let differences = native.values().zip(own.values()).flat_map(|(native, own)| {
                let mean = native.sum.abs_diff(own.sum) as f64 / f64::from(OPERATIONS);
                let [min, max] = [native.min.abs_diff(own.min), native.max.abs_diff(own.max)];
                [min as f64, mean, max as f64]
            });
            let own = differences.fold(mode.taken.el2.1 as f64 / all, f64::max);
            Some(f64::max(added, own))
        })
    }

    /// The figure of an access to the GIC, the largest of all modes, with all of them beside it.
    pub(super) fn access(&self, budget: &Budget, name: &str) -> Result<Figure, Failure> {
        let id = ACCESSES.iter().find(|(_, known)| *known == name);
        let id = id.map_or(0, |(id, _)| *id);
        let counted = |mode: &Mode| {
            let counted = mode.taken.accesses.get(&id).copied();
            let part = |value| Part {
                name: format!("in {OPERATIONS} of them, {}", mode.name),
                value,
            };
            counted.map(part)
        };
        let parts: Option<Vec<Part>> = self.modes.iter().map(counted).collect();
        let parts = parts.filter(|parts| !parts.is_empty()).ok_or_else(|| {
            Failure::failed(format!("`{name}` was not measured in all modes"), "", "")
        })?;
        let most = parts.iter().map(|part| part.value).max().unwrap_or(0);
        let mut figure = Figure::new(budget, most as f64 / f64::from(OPERATIONS));
        figure.note = "instructions by the mode of the VM".to_owned();
        figure.parts = parts;
        Ok(figure)
    }

    /// The figure of a kick, the largest of these modes.
    pub(super) fn kick(&self, budget: &Budget, modes: &[&str]) -> Result<Figure, Failure> {
        let measured = self.modes.iter().filter(|mode| modes.contains(&mode.name));
        let most = measured.map(|mode| mode.kick).max();
        let most = most.ok_or_else(|| Failure::failed("no kick was measured", "", ""))?;
        Ok(Figure::new(budget, most as f64))
    }

    /// The kicks of all modes, as parts of a figure.
    pub(super) fn kicks(&self) -> impl Iterator<Item = Part> {
        self.modes.iter().map(|mode| Part {
            name: mode.name.to_owned(),
            value: mode.kick,
        })
    }

    /// The figure, with the table beside it.
    pub(super) fn figure(&self, budget: &Budget) -> Result<Figure, Failure> {
        let added = self.added().ok_or_else(|| {
            Failure::failed(
                "interrupts that a VM takes itself were not measured",
                "",
                "",
            )
        })?;
        let mut figure = Figure::new(budget, added);
        figure.note = self.table();
        for (who, run) in self.runs() {
            let (exits, value) = run.el2;
            let name = format!("instructions of EL2 in {exits} exits, {who}");
            figure.parts.push(Part { name, value });
        }
        Ok(figure)
    }

    /// The runs under EL2, each with its name.
    fn runs(&self) -> impl Iterator<Item = (&str, &Taken)> {
        let modes = self.modes.iter().map(|mode| (mode.name, &mode.taken));
        modes.chain([("virtual GIC", &self.vgic)])
    }

    /// Latencies, a row for each kind: least/mean/most.
    fn table(&self) -> String {
        let runs: Vec<_> = [("native", &self.native)]
            .into_iter()
            .chain(self.runs())
            .collect();
        let mut sides = vec![Column::Right(0); 1 + runs.len()];
        sides[0] = Column::Left(0);
        let mut columns = Columns::new(&sides);
        let names = runs.iter().map(|(who, _)| (*who).to_owned());
        columns.row([String::new()].into_iter().chain(names));
        for name in self.native.late.keys() {
            let late = runs.iter().map(|(_, run)| {
                let Late { min, sum, max } = run.late.get(name).copied().unwrap_or_default();
                let mean = sum as f64 / f64::from(OPERATIONS);
                format!("{min}/{mean:.3}/{max}")
            });
            columns.row([name.clone()].into_iter().chain(late));
        }
        let what = "from when it is due to the vector";
        let mut text = format!(
            "{what}, {OPERATIONS} each, min/mean/max\n{}",
            columns.text("  ")
        );
        // A note ends without a line end.
        text.truncate(text.trim_end().len());
        text
    }
}

fn cannot(error: &dyn std::fmt::Display) -> Failure {
    Failure::environment("cannot prepare the measurement", error, "")
}

/// Runs until two runs give the same, and returns that. On the instruction clock all runs are alike; but where the host
/// wakes QEMU's main thread just as a CPU falls asleep, the clock jumps by some instructions, which no hypervisor has
/// executed. What EL2 does comes again in the next run.
fn agreed(mut run: impl FnMut() -> Result<Taken, Failure>) -> Result<Taken, Failure> {
    let mut seen = Vec::new();
    for _ in 0..RUNS {
        let taken = run()?;
        if seen.contains(&taken) {
            return Ok(taken);
        }
        seen.push(taken);
    }
    let why = format!("{RUNS} runs, and none is like another");
    Err(Failure::failed("a run depends on the host", why, ""))
}

/// Runs the program under EL2, with or without its virtual GIC.
fn guest(built: &Built, folder: &Path) -> Result<Taken, Failure> {
    let el2 = Program::read(&built.el2)?;
    let program = Program::read(&cross_build::guest(GUEST)?)?;
    let instrument = Instrument {
        marks: Some(program.marks(BEGIN_SYMBOL, END_SYMBOL)?),
        ..Instrument::new(&el2)
    };
    let attached = instrument.attach(folder)?;
    let mut qemu = board(built, 0)?;
    qemu.plugins.push(attached.argument.clone());
    let said = run_to_end(&qemu, LAST)?;
    let profile = attached.profile()?;
    Ok(Taken {
        late: latencies(&said),
        el2: executed(&profile),
        accesses: accesses(&profile),
    })
}

/// Returns the instructions of a kick, from the longest path that begins with one: that by which the VM's pCPU kicks
/// itself when it starts, before it scrubs the VM's memory.
fn kick(gic: Gic, built: &Built, folder: &Path) -> Result<u64, Failure> {
    let el2 = Program::read(&built.el2)?;
    check_names(gic, &el2.el2()?)?;
    let instrument = Instrument {
        from: Some(KICK[0]),
        ..Instrument::new(&el2)
    };
    let attached = instrument.attach(folder)?;
    let mut qemu = board(built, 0)?;
    qemu.plugins.push(attached.argument.clone());
    run_to_end(&qemu, LAST)?;
    let longest = attached.profile()?.longest;
    let path = longest.map_or_else(Vec::new, |longest| longest.path);
    length(&path)
        .ok_or_else(|| Failure::failed("no kick was seen at the start of a VM's pCPU", "", ""))
}

/// Checks that EL2 has functions of the names in [`KICK`]: one of another name would be left out of a kick, which would
/// look cheaper.
fn check_names(gic: Gic, el2: &El2) -> Result<(), Failure> {
    kick_names(gic)
        .iter()
        .chain(&CALLERS)
        .try_for_each(|part| el2.functions(part, "the figure of a kick").map(drop))
}

/// Instructions from the start of a path to the end of the functions that it begins with, if those are of [`KICK`]. Behind [`CALLERS`] there
/// may be another kick.
fn length(path: &[Visit]) -> Option<u64> {
    let is_kick = |visit: &Visit| KICK.iter().any(|kick| visit.symbol.contains(kick));
    path.first()
        .filter(|first| first.symbol.contains(KICK[0]))?;
    let is_caller = |visit: &Visit| CALLERS.iter().any(|it| visit.symbol.contains(it));
    let back = path.iter().position(is_caller);
    let path = path.get(..back.unwrap_or(path.len()))?;
    let last = path.iter().rposition(is_kick)?;
    Some(
        path.iter()
            .take(last + 1)
            .map(|visit| visit.instructions)
            .sum(),
    )
}

/// Instructions between the marks of each kind of access. One without an exit has none.
fn accesses(profile: &Profile) -> BTreeMap<u64, u64> {
    let figures = profile.figures.iter().filter(|(id, _)| is_access(**id));
    figures
        .map(|(id, figure)| (*id, figure.cost.instructions))
        .collect()
}

fn is_access(id: u64) -> bool {
    ACCESSES.iter().any(|(access, _)| *access == id)
}

/// Exits and instructions between all marks of interrupts.
fn executed(profile: &Profile) -> (u64, u64) {
    let figures = profile.figures.iter().filter(|(id, _)| !is_access(**id));
    figures
        .map(|(_, figure)| figure)
        .fold((0, 0), |(exits, instructions), figure| {
            (
                exits + figure.exits,
                instructions + figure.cost.instructions,
            )
        })
}

/// Runs the program on the board without EL2, with what the VM has: its memory and its device tree.
fn native(built: &Built, folder: &Path) -> Result<Taken, Failure> {
    let mut qemu = bare(built, 0, folder)?;
    qemu.image = cross_build::guest(GUEST)?;
    Ok(Taken {
        late: latencies(&run_to_end(&qemu, LAST)?),
        ..Taken::default()
    })
}

/// Reads latencies from lines like `late vtimer_irq: ticks min=1 sum=2 max=3`.
fn latencies(said: &str) -> BTreeMap<String, Late> {
    let lines = said.lines().filter_map(|line| {
        let (name, rest) = line.split_once("late ")?.1.split_once(": ticks ")?;
        let number = |key: &str| {
            let value = rest.split(' ').find_map(|word| word.strip_prefix(key));
            value?.trim().parse().ok()
        };
        let late = Late {
            min: number("min=")?,
            sum: number("sum=")?,
            max: number("max=")?,
        };
        Some((name.to_owned(), late))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use bulkhead_profiler::Symbol;

    use super::*;

    const SAID: &str =
        "[bench] late vtimer_irq: ticks min=7 sum=8000 max=9\r\n[bench] irq-latency: 1000\n";

    fn runs() -> GpptRuns {
        let native = Taken {
            late: latencies(SAID),
            ..Taken::default()
        };
        let mode = |name, kick| Mode {
            name,
            taken: native.clone(),
            kick,
        };
        GpptRuns {
            modes: vec![mode("one", 14), mode("two", 20)],
            vgic: native.clone(),
            native: native.clone(),
        }
    }

    #[test]
    fn a_run_counts_that_came_twice() {
        let taken = |exits| Taken {
            el2: (exits, 0),
            ..Taken::default()
        };
        let of = |runs: &[u64]| {
            let mut runs = runs.iter();
            agreed(|| Ok(taken(*runs.next().expect("as many runs as that"))))
        };
        assert_eq!(of(&[0, 5, 0, 5]).ok(), Some(taken(0)));
        assert_eq!(of(&[5, 5, 0]).ok(), Some(taken(5)));
        assert!(of(&[1, 2, 3, 4, 5, 1]).is_err());
    }

    #[test]
    fn latencies_are_read_from_what_the_program_says() {
        let late = latencies(SAID);
        let expected = Late {
            min: 7,
            sum: 8000,
            max: 9,
        };
        assert_eq!(late.len(), 1);
        assert_eq!(late["vtimer_irq"], expected);
    }

    #[test]
    fn each_difference_and_each_instruction_of_el2_counts() {
        assert_eq!(runs().added(), Some(0.0));
        let changed = |change: fn(&mut Late)| {
            let mut runs = runs();
            let second = &mut runs.modes[1].taken;
            second.late.values_mut().for_each(change);
            runs.added()
        };
        assert_eq!(changed(|late| late.min -= 2), Some(2.0));
        assert_eq!(changed(|late| late.sum += 500), Some(0.5));
        assert_eq!(changed(|late| late.max += 3), Some(3.0));
        let mut exits = runs();
        exits.modes[0].taken.el2 = (1, 70);
        assert_eq!(exits.added(), Some(0.07));
        exits.modes[0].taken.late.clear();
        assert_eq!(exits.added(), None);
        assert_eq!(GpptRuns::default().added(), None);
    }

    #[test]
    fn a_kick_is_what_is_executed_until_it_returns() {
        let visit = |symbol: &str, instructions| Visit {
            symbol: symbol.to_owned(),
            instructions,
        };
        let kick = "bulkhead_el2::hw::gic::gppt::kick";
        let path = [
            visit(kick, 20),
            visit("mark_root", 100),
            visit(kick, 30),
            visit("scrub", 9),
        ];
        assert_eq!(length(&path), Some(150));
        // Called at the very end, so that it does not come back there.
        let call = [
            visit(kick, 9),
            visit("bulkhead_el2::hw::gic::by_spi::call", 40),
            visit("forget", 5),
            visit("bulkhead_el2::hw::gic::revoke::revoke", 3),
            visit("scrub", 9),
        ];
        assert_eq!(length(&call), Some(57));
        let twice = [
            visit(kick, 20),
            visit("el2_pcpu", 3),
            visit("drain", 900),
            visit(kick, 20),
        ];
        assert_eq!(length(&twice), Some(20), "the second is another one");
        assert_eq!(length(&path[1..]), None);
        assert_eq!(length(&[]), None);
    }

    #[test]
    fn a_kick_is_counted_by_names_that_el2_has() {
        let el2 = |names: &[&str]| El2 {
            symbols: names
                .iter()
                .map(|name| Symbol {
                    name: format!("bulkhead_el2::{name}"),
                    ..Symbol::default()
                })
                .collect(),
            ..El2::default()
        };
        let without_spi = [
            "hw::gic::gppt::kick",
            "hw::gic::revoke::mark_root",
            "mailbox::send",
            "el2_pcpu",
        ];
        assert!(check_names(Gic::V2, &el2(&without_spi)).is_err());
        let by_write = [&without_spi[..], &["hw::gic::call_spis::write"]].concat();
        assert!(check_names(Gic::V2, &el2(&by_write)).is_ok());
        // As when the requests by SPI moved to a file of their own.
        let moved = [&by_write[..], &["hw::gic::gppt::call"]].concat();
        let failure = check_names(Gic::V3, &el2(&moved)).expect_err("it has moved");
        assert_eq!(
            failure.what,
            "EL2 has no function `hw::gic::by_spi::call`, by which the figure of a kick counts"
        );
        let all = [&by_write[..], &["hw::gic::by_spi::call"]].concat();
        assert!(check_names(Gic::V3, &el2(&all)).is_ok());
    }

    #[test]
    fn the_largest_kick_of_the_modes_counts() {
        let budgets = super::super::budgets::Budgets::load().expect("they are there");
        let budget = &budgets.figures[0];
        let value = |modes: &[&str]| runs().kick(budget, modes).map(|figure| figure.value).ok();
        assert_eq!(value(&["one"]), Some(14.0));
        assert_eq!(value(&["two", "one"]), Some(20.0));
        assert_eq!(value(&["three"]), None);
        let kicks: Vec<u64> = runs().kicks().map(|part| part.value).collect();
        assert_eq!(kicks, [14, 20]);
    }

    #[test]
    fn the_table_has_all_runs() {
        let mut runs = runs();
        runs.vgic.late.values_mut().for_each(|late| late.max = 99);
        let table = runs.table();
        let row: Vec<&str> = table
            .lines()
            .last()
            .unwrap_or("")
            .split_whitespace()
            .collect();
        assert_eq!(
            row,
            [
                "vtimer_irq",
                "7/8.000/9",
                "7/8.000/9",
                "7/8.000/9",
                "7/8.000/99"
            ]
        );
    }
}
