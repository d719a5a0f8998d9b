//! Exits of a control loop whose network and disk are polled, while frames come and go and its disk is written and read.

use std::path::Path;

use bulkhead_model::failure::Failure;
use bulkhead_runner::profile::{Instrument, Program, period_of};
use bulkhead_runner::progress::Step;

use super::budgets::Budget;
use super::ending::run_to_end;
use super::figure::{Figure, Part};
use super::native::board;
use super::variant::variant;

/// The system, and what of it differs by the mode in which the loop takes its interrupts. With a GICv2 the profiler does not see the periods of
/// a VM that acknowledges its interrupts itself: there tests count all exits of the loop.
const SYSTEM: &str = "lab/systems/bench-polled.toml";
const GIC: &str = "gic = 3\n";
const MODE: &str = "interrupts = \"gppt\"\n";
const MODES: [(&str, &str, &str); 4] = [
    ("recoverable", GIC, MODE),
    ("pmr-trapped", GIC, "interrupts = \"gppt-pmr-trapped\"\n"),
    ("pmr-direct", GIC, "interrupts = \"gppt-pmr-direct\"\n"),
    ("revocable", "gic = 3\nfirmware = \"el3\"\n", MODE),
];
/// The VM, its label, and the start of its last line: between them is what colours the label.
const VM: &str = "loop";
const LABEL: &str = "[loop]";
const LAST: &str = "polled: sent=";
/// Least number of periods, of 2000.
const PERIODS: u64 = 1990;

/// What was counted in a mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolledRun {
    /// Its name, as plans show it.
    pub name: &'static str,
    /// Exits in all periods, and their number.
    pub exits: u64,
    /// Periods.
    pub periods: u64,
    /// Frames that the loop has received.
    pub frames: u64,
}

/// Builds the system for each mode and runs it.
///
/// # Errors
///
/// Something can't be built or run, or the loop gets no frames or not to its end.
pub fn measure() -> Result<Vec<PolledRun>, Failure> {
    let folder = tempfile::tempdir().map_err(|error| cannot(&error))?;
    let step = Step::start("measuring: a control loop with polled devices");
    let modes = MODES.iter();
    let runs = modes.map(|(name, gic, mode)| run(name, (gic, mode), folder.path()));
    let runs = runs.collect();
    drop(step);
    runs
}

fn cannot(error: &dyn std::fmt::Display) -> Failure {
    Failure::environment("cannot prepare the measurement", error, "")
}

fn run(name: &'static str, (gic, mode): (&str, &str), folder: &Path) -> Result<PolledRun, Failure> {
    let built = variant(SYSTEM, &[(GIC, gic), (MODE, mode)], folder)?;
    let el2 = Program::read(&built.el2)?;
    let instrument = Instrument {
        period: period_of(&built.planned.bytes, VM),
        ..Instrument::new(&el2)
    };
    let attached = instrument.attach(folder)?;
    let mut qemu = board(&built, 0)?;
    qemu.plugins.push(attached.argument.clone());
    let said = run_to_end(&qemu, LAST)?;
    let periods = attached.profile()?.periods.unwrap_or_default();
    let run = PolledRun {
        name,
        exits: periods.exits,
        periods: periods.count,
        frames: frames(&said).unwrap_or(0),
    };
    run.sound()
}

/// Frames that the loop says it has received.
fn frames(said: &str) -> Option<u64> {
    let of_loop = |line: &&str| line.contains(LABEL) && line.contains(LAST);
    let line = said.lines().find(of_loop)?;
    let words = line.split_whitespace();
    { words }
        .find_map(|word| word.strip_prefix("received="))?
        .parse()
        .ok()
}

impl PolledRun {
    /// The run, if there was something to count.
    fn sound(self) -> Result<Self, Failure> {
        if self.periods >= PERIODS && self.frames >= PERIODS / 2 {
            return Ok(self);
        }
        let Self {
            name,
            periods,
            frames,
            ..
        } = self;
        let why = format!("{periods} periods and {frames} frames in the mode {name}");
        Err(Failure::failed("no control loop was measured", why, ""))
    }
}

/// The figure: most exits of any mode, with all of them beside it.
pub(super) fn figure(runs: &[PolledRun], budget: &Budget) -> Result<Figure, Failure> {
    let most = runs.iter().map(|run| run.exits).max();
    let most = most.ok_or_else(|| Failure::failed("no control loop was measured", "", ""))?;
    let mut figure = Figure::new(budget, most as f64);
    figure.note = "by the mode of the VM".to_owned();
    figure.parts = { runs.iter() }
        .map(|run| Part {
            name: format!(
                "exits in {} periods with {} frames received, {}",
                run.periods, run.frames, run.name
            ),
            value: run.exits,
        })
        .collect();
    Ok(figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(exits: u64) -> PolledRun {
        PolledRun {
            name: "one",
            exits,
            periods: PERIODS,
            frames: 1500,
        }
    }

    #[test]
    fn the_mode_with_most_exits_counts() {
        let budgets = super::super::budgets::Budgets::load().expect("they are there");
        let value = |runs: &[PolledRun]| figure(runs, &budgets.figures[0]).map(|it| it.value).ok();
        assert_eq!(value(&[of(0), of(3), of(1)]), Some(3.0));
        assert_eq!(value(&[of(0), of(0)]), Some(0.0));
        assert_eq!(value(&[]), None);
    }

    #[test]
    fn a_loop_that_did_not_run_or_heard_nothing_is_no_figure() {
        assert_eq!(of(0).sound().ok(), Some(of(0)));
        let silent = PolledRun { frames: 0, ..of(0) };
        assert!(silent.sound().is_err());
        let short = PolledRun {
            periods: 9,
            ..of(0)
        };
        assert!(short.sound().is_err());
        let said = "[tells] polled: sent=1 received=2\n\x1b[36m[loop]\x1b[0m polled: sent=2001 received=1999 lost=0\n";
        assert_eq!(frames(said), Some(1999));
        assert_eq!(frames("[loop] DONE"), None);
    }
}
