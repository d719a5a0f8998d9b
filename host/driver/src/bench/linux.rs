//! Time that Linux takes to its first program: under EL2, and on the bare board, with the same kernel, device tree and
//! archive.

use std::path::Path;

use bulkhead_profiler::Profile;

use bulkhead_model::checkout;
use bulkhead_model::failure::Failure;
use bulkhead_runner::build::{Built, build};
use bulkhead_runner::profile::Instrument;
use bulkhead_runner::profile::Program;
use bulkhead_runner::progress::Step;

use super::budgets::Gic;
use super::ending::run_to_end;
use super::native::{board, native};

/// The systems, by the board's GIC.
const fn system(gic: Gic) -> &'static str {
    match gic {
        Gic::V2 => "lab/systems/bench-linux-gicv2.toml",
        Gic::V3 => "lab/systems/bench-linux.toml",
    }
}

/// Start of the line of `guests/init`; the virtual counter follows it.
const WORD: &str = "init: ";

/// Boots of one Linux, from the kernel's first instruction to that of its first program. In nanoseconds of
/// the instruction clock; sleep counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinuxBoot {
    /// As a VM.
    pub guest: u64,
    /// On the board itself, at EL1.
    pub native: u64,
    /// Profile of the work that EL2 did for the VM.
    pub profile: Profile,
}

impl LinuxBoot {
    /// Builds the system and boots it both ways.
    ///
    /// # Errors
    ///
    /// Something can't be built, fetched or run, or a Linux does not get to its end.
    pub fn measure(gic: Gic) -> Result<Self, Failure> {
        let built = build(&checkout::root().join(system(gic))).map_err(Failure::from)?;
        let folder = tempfile::tempdir().map_err(|error| cannot(&error))?;
        let step = Step::start("measuring: a boot of Linux");
        let native = counter(&run_to_end(&native(&built, 0, folder.path())?, WORD)?)?;
        let (guest, profile) = guest(&built, folder.path())?;
        drop(step);
        Ok(Self {
            guest,
            native,
            profile,
        })
    }

    /// The time that it takes as a VM in percent of that on the board; `None` if that was not measured.
    pub fn ratio(&self) -> Option<f64> {
        (self.native != 0).then(|| 100.0 * self.guest as f64 / self.native as f64)
    }

    /// Returns the time that it takes as a VM if it takes `native` on the board: a scale on which kernels and compilers
    /// that differ a little can be compared.
    pub fn scaled(&self, native: u64) -> f64 {
        self.guest as f64 * native as f64 / self.native as f64
    }
}

fn cannot(error: &dyn std::fmt::Display) -> Failure {
    Failure::environment("cannot prepare the measurement", error, "")
}

/// Boots it under EL2; returns the counter that the first program read, less all that EL2 did before it entered the
/// guest, and the profile. The board has one CPU that never slept until then, so these are as many instructions as
/// nanoseconds.
fn guest(built: &Built, folder: &Path) -> Result<(u64, Profile), Failure> {
    let el2 = Program::read(&built.el2)?;
    let instrument = Instrument {
        boot: Some(built.planned.image.base),
        ..Instrument::new(&el2)
    };
    let attached = instrument.attach(folder)?;
    let mut qemu = board(built, 0)?;
    qemu.plugins.push(attached.argument.clone());
    let counter = counter(&run_to_end(&qemu, WORD)?)?;
    let profile = attached.profile()?;
    let entered = profile.boot.as_ref().filter(|boot| boot.reached_guest);
    let before = entered.map(|boot| boot.cost.instructions);
    let guest = before.and_then(|before| counter.checked_sub(before));
    match guest {
        Some(guest) => Ok((guest, profile)),
        None => Err(Failure::failed("EL2 entered no guest", "", "")),
    }
}

/// Reads the counter from what the first program said.
fn counter(said: &str) -> Result<u64, Failure> {
    let digits = said.rsplit_once(WORD).map_or("", |(_, rest)| rest);
    let digits = digits.split(|c: char| !c.is_ascii_digit()).next();
    let counter = digits.unwrap_or_default().parse();
    counter.map_err(|error| Failure::failed("Linux's first program said no number", error, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_is_the_number_behind_the_last_word() {
        let said = "[    0.7] Run /init as init process\n\x1b[36m[linux]\x1b[0m init: 864263376\r\n[el2] end 1\n";
        assert_eq!(counter(said).ok(), Some(864_263_376));
        assert!(counter("init: \n").is_err());
        assert!(counter("7").is_err());
    }

    #[test]
    fn a_boot_is_scaled_to_what_it_takes_natively() {
        let boot = LinuxBoot {
            guest: 1_100,
            native: 1_000,
            profile: Profile::default(),
        };
        assert!((boot.scaled(934) - 1_027.4).abs() < 1e-9);
        let ratio = boot.ratio().expect("both were measured");
        assert!((ratio - 110.0).abs() < 1e-9);
        assert_eq!(LinuxBoot::default().ratio(), None);
    }
}
