//! What the start of a large VM costs whose memory keeps to half of the colours, beside one that has them all.

use std::path::Path;

use bulkhead_model::failure::Failure;
use bulkhead_profiler::Profile;
use bulkhead_runner::profile::{Instrument, Program};
use bulkhead_runner::progress::Step;

use super::budgets::Budget;
use super::ending::run_to_end;
use super::figure::{Figure, Part};
use super::native::board;
use super::variant::variant;

const SYSTEM: &str = "lab/systems/bench-colours.toml";
/// What makes the description one with colours.
const COLOURS: [&str; 2] = ["colours = 16\n", "colours = \"0-7\"\n"];
const LAST: &str = "all VMs stopped";
/// Pages of the VM.
const PAGES: u64 = (512 << 20) / 4096;
/// Functions that zero and copy memory.
const MEMORY: [&str; 3] = ["bytes::copy_", "memory::scrub_", "bytes::clean"];

/// EL2's instructions from its entry to the first one of the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// All.
    all: u64,
    /// Those that neither zero nor copy.
    own: u64,
}

/// Both starts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Starts {
    plain: Start,
    coloured: Start,
}

/// Measures both.
///
/// # Errors
///
/// Something can't be built or run, or no guest was entered.
pub fn measure() -> Result<Starts, Failure> {
    let folder = tempfile::tempdir();
    let folder = folder.map_err(|error| Failure::environment("cannot measure", error, ""))?;
    let _step = Step::start("measuring: the start of a large VM with colours and without");
    let none = COLOURS.map(|words| (words, ""));
    Ok(Starts {
        plain: run(&none, folder.path())?,
        coloured: run(&[], folder.path())?,
    })
}

fn run(words: &[(&str, &str)], folder: &Path) -> Result<Start, Failure> {
    let built = variant(SYSTEM, words, folder)?;
    let el2 = Program::read(&built.el2)?;
    let instrument = Instrument {
        boot: Some(built.planned.image.base),
        ..Instrument::new(&el2)
    };
    let attached = instrument.attach(folder)?;
    let mut qemu = board(&built, 0)?;
    qemu.plugins.push(attached.argument.clone());
    run_to_end(&qemu, LAST)?;
    start(&attached.profile()?)
}

fn start(profile: &Profile) -> Result<Start, Failure> {
    let boot = profile.boot.as_ref().filter(|boot| boot.reached_guest);
    let boot = boot.ok_or_else(|| Failure::failed("EL2 entered no guest", "", ""))?;
    let mut start = Start::default();
    for (name, cost) in &boot.symbols {
        start.all += cost.instructions;
        if !MEMORY.iter().any(|part| name.contains(part)) {
            start.own += cost.instructions;
        }
    }
    Ok(start)
}

impl Starts {
    /// A figure of this name.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn figure(&self, budget: &Budget) -> Result<Figure, Failure> {
        let Self { plain, coloured } = self;
        let value = match budget.name.as_str() {
            "boot_colours" => coloured.all as f64,
            "boot_colours_ratio" => 100.0 * coloured.all as f64 / plain.all as f64,
            "boot_colours_page" => (coloured.own as f64 - plain.own as f64) / PAGES as f64,
            name => {
                return Err(Failure::failed(
                    format!("`{name}` was not measured"),
                    "",
                    "",
                ));
            }
        };
        let mut figure = Figure::new(budget, value);
        let part = |name: &str, value| Part {
            name: name.to_owned(),
            value,
        };
        figure.parts = vec![
            part("with colours", coloured.all),
            part("with colours, without zeroing and copying", coloured.own),
            part("without colours", plain.all),
            part("without colours, without zeroing and copying", plain.own),
        ];
        "instructions".clone_into(&mut figure.note);
        Ok(figure)
    }
}

#[cfg(test)]
mod tests {
    use super::super::budgets::Budgets;
    use super::*;

    impl Starts {
        /// A start that costs a fifth more with colours.
        pub(in super::super) fn sample() -> Self {
            let start = |all, own| Start { all, own };
            Self {
                plain: start(30, 3),
                coloured: start(36, 4),
            }
        }
    }

    #[test]
    fn figures_are_of_all_and_of_each_page() {
        let start = |all, own| Start { all, own };
        let starts = Starts {
            plain: start(20_000_000, 100_000),
            coloured: start(23_000_000, 100_000 + 8 * PAGES),
        };
        let budgets = Budgets::load().expect("they are in the repository");
        let value = |name: &str| {
            let budget = budgets.get(name).expect("a budget");
            starts.figure(budget).expect("a figure").value
        };
        assert_eq!(value("boot_colours"), 23e6);
        assert_eq!(value("boot_colours_ratio"), 115.0);
        assert_eq!(value("boot_colours_page"), 8.0);
    }
}
