//! What an interrupt costs that a VM takes itself: the same program on the bare board, as such a VM, and through the
//! virtual GIC.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use bulkhead_profiler::{Profile, Visit};

use super::budgets::{Budget, Gic};
use super::ending::run_to_end;
use super::figure::{Figure, Part};
use super::instrument::Instrument;
use super::native::{bare, board};
use super::program::Program;
use super::subject::operations::{BEGIN_SYMBOL, END_SYMBOL, OPERATIONS};
use crate::cmd::build::{Built, build};
use crate::failure::Failure;
use crate::machine;
use crate::progress::Step;

/// The systems with each version of the GIC: interrupts taken by the VM, and through the virtual GIC.
const SYSTEMS: [(Gic, [&str; 2]); 2] = [
    (
        Gic::V2,
        [
            "systems/bench-own-gicv2.toml",
            "systems/bench-own-vgic-gicv2.toml",
        ],
    ),
    (
        Gic::V3,
        ["systems/bench-own.toml", "systems/bench-own-vgic.toml"],
    ),
];
/// The program.
const GUEST: &str = "latency";
/// Begins its last line.
const LAST: &str = "latency: ";

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
    /// Exits and instructions of EL2 between the marks.
    pub el2: (u64, u64),
}

/// The three runs.
#[derive(Clone, Debug, Default)]
pub struct OwnInterrupts {
    /// Without a hypervisor.
    pub native: Taken,
    /// Taken by the VM itself.
    pub own: Taken,
    /// Through the virtual GIC.
    pub vgic: Taken,
    /// Instructions from when another pCPU is wanted that runs such a VM to the SGI that goes there, and back to who wants it.
    pub kick: u64,
}

/// The function of EL2 that makes a pCPU come to EL2.
const KICK: &str = "hw::gic::own::kick";

impl OwnInterrupts {
    /// Builds both systems, and runs the program in each and on the bare board.
    ///
    /// # Errors
    ///
    /// Something can't be built or run, or the program does not get to its end.
    pub fn measure(gic: Gic) -> Result<Self, Failure> {
        let systems = SYSTEMS.iter().find(|(version, _)| *version == gic);
        let systems = systems.map_or([""; 2], |(_, systems)| *systems);
        let built = systems.map(|system| build(&machine::checkout().join(system)));
        let [own, vgic] = built.map(|built| built.map_err(Failure::from));
        let (own, vgic) = (own?, vgic?);
        let folder = tempfile::tempdir().map_err(|error| cannot(&error))?;
        let step = Step::start("measuring: interrupts that a VM takes itself");
        let measured = Self {
            native: native(&own, folder.path())?,
            own: guest(&own, folder.path())?,
            vgic: guest(&vgic, folder.path())?,
            kick: kick(&own, folder.path())?,
        };
        drop(step);
        Ok(measured)
    }

    /// The largest difference to the bare board that the VM sees, and what EL2 executes for an interrupt, in
    /// instructions. `None` if not all was measured.
    fn added(&self) -> Option<f64> {
        let (native, own) = (&self.native.late, &self.own.late);
        if native.is_empty() || !native.keys().eq(own.keys()) {
            return None;
        }
        let differences = native.values().zip(own.values()).flat_map(|(native, own)| {
            let mean = native.sum.abs_diff(own.sum) as f64 / f64::from(OPERATIONS);
            let [min, max] = [native.min.abs_diff(own.min), native.max.abs_diff(own.max)];
            [min as f64, mean, max as f64]
        });
        let all = f64::from(OPERATIONS) * native.len() as f64;
        Some(differences.fold(self.own.el2.1 as f64 / all, f64::max))
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
        for (who, run) in [("taken by the VM", &self.own), ("virtual GIC", &self.vgic)] {
            let (exits, value) = run.el2;
            let name = format!("instructions of EL2 in {exits} exits, {who}");
            figure.parts.push(Part { name, value });
        }
        Ok(figure)
    }

    /// Latencies, a row for each kind: least/mean/most.
    fn table(&self) -> String {
        let mut text = format!(
            "from when it is due to the vector, {OPERATIONS} each, min/mean/max\n  {:<16}{:>18}{:>18}{:>18}",
            "", "native", "taken by the VM", "virtual GIC"
        );
        for name in self.native.late.keys() {
            let _ = write!(text, "\n  {name:<16}");
            for run in [&self.native, &self.own, &self.vgic] {
                let Late { min, sum, max } = run.late.get(name).copied().unwrap_or_default();
                let mean = sum as f64 / f64::from(OPERATIONS);
                let _ = write!(text, "{:>18}", format!("{min}/{mean:.3}/{max}"));
            }
        }
        text
    }
}

fn cannot(error: &dyn std::fmt::Display) -> Failure {
    Failure::environment("cannot prepare the measurement", error, "")
}

/// Under EL2, with and without its virtual GIC.
fn guest(built: &Built, folder: &Path) -> Result<Taken, Failure> {
    let el2 = Program::read(&built.el2)?;
    let program = Program::read(&machine::guest(GUEST)?)?;
    let instrument = Instrument {
        marks: Some(program.marks(BEGIN_SYMBOL, END_SYMBOL)?),
        ..Instrument::new(&el2)
    };
    let attached = instrument.attach(folder)?;
    let mut qemu = board(built, 0)?;
    qemu.plugins.push(attached.argument.clone());
    let said = run_to_end(&qemu, LAST)?;
    Ok(Taken {
        late: latencies(&said),
        el2: executed(&attached.profile()?),
    })
}

/// What the longest work consists of that begins with a kick: that by which the VM's pCPU kicks itself when it starts, before
/// it scrubs the VM's memory.
fn kick(built: &Built, folder: &Path) -> Result<u64, Failure> {
    let el2 = Program::read(&built.el2)?;
    let instrument = Instrument {
        from: Some(KICK),
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

/// Instructions from the begin of a path to the end of the function that it begins with, if that is [`KICK`].
fn length(path: &[Visit]) -> Option<u64> {
    let is_kick = |visit: &Visit| visit.symbol.contains(KICK);
    path.first().filter(|first| is_kick(first))?;
    let last = path.iter().rposition(is_kick)?;
    Some(
        path.iter()
            .take(last + 1)
            .map(|visit| visit.instructions)
            .sum(),
    )
}

/// Exits and instructions between all marks.
fn executed(profile: &Profile) -> (u64, u64) {
    let figures = profile.figures.values();
    figures.fold((0, 0), |(exits, instructions), figure| {
        (
            exits + figure.exits,
            instructions + figure.cost.instructions,
        )
    })
}

/// On the board without EL2, with what the VM has: its memory and its device tree.
fn native(built: &Built, folder: &Path) -> Result<Taken, Failure> {
    let mut qemu = bare(built, 0, folder)?;
    qemu.image = machine::guest(GUEST)?;
    Ok(Taken {
        late: latencies(&run_to_end(&qemu, LAST)?),
        el2: (0, 0),
    })
}

/// From lines like `late vtimer_irq: ticks min=1 sum=2 max=3`.
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
    use super::*;

    const SAID: &str =
        "[latency] late vtimer_irq: ticks min=7 sum=8000 max=9\r\n[latency] latency: 1000\n";

    fn runs() -> OwnInterrupts {
        let native = Taken {
            late: latencies(SAID),
            el2: (0, 0),
        };
        OwnInterrupts {
            own: native.clone(),
            vgic: native.clone(),
            native,
            kick: 0,
        }
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
            runs.own.late.values_mut().for_each(change);
            runs.added()
        };
        assert_eq!(changed(|late| late.min -= 2), Some(2.0));
        assert_eq!(changed(|late| late.sum += 500), Some(0.5));
        assert_eq!(changed(|late| late.max += 3), Some(3.0));
        let mut exits = runs();
        exits.own.el2 = (1, 70);
        assert_eq!(exits.added(), Some(0.07));
        exits.own.late.clear();
        assert_eq!(exits.added(), None);
        assert_eq!(OwnInterrupts::default().added(), None);
    }

    #[test]
    fn a_kick_is_what_is_executed_until_it_returns() {
        let visit = |symbol: &str, instructions| Visit {
            symbol: symbol.to_owned(),
            instructions,
        };
        let kick = "bulkhead_el2::hw::gic::own::kick";
        let path = [
            visit(kick, 20),
            visit("mark_root", 100),
            visit(kick, 30),
            visit("scrub", 9),
        ];
        assert_eq!(length(&path), Some(150));
        assert_eq!(length(&path[1..]), None);
        assert_eq!(length(&[]), None);
    }

    #[test]
    fn the_table_has_all_three() {
        let mut runs = runs();
        runs.vgic.late.values_mut().for_each(|late| late.max = 99);
        let table = runs.table();
        let row: Vec<&str> = table
            .lines()
            .last()
            .unwrap_or("")
            .split_whitespace()
            .collect();
        assert_eq!(row, ["vtimer_irq", "7/8.000/9", "7/8.000/9", "7/8.000/99"]);
    }
}
