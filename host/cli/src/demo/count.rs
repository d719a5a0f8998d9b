//! Counts what EL2 takes of each period of the control loop, with the profiler.

use std::ffi::OsString;

use bulkhead_model::failure::Failure;
use bulkhead_runner::profile::{Attached, Instrument, Program, period_of};
use bulkhead_runner::run::System;

use super::progress::CONTROL;
use super::summary::El2Periods;

/// A count under way.
pub struct El2Count {
    attached: Attached,
    by_guest: bool,
}

impl El2Count {
    /// Builds the profiler and tells it to watch the timer of the pCPU on which the loop runs.
    ///
    /// # Errors
    ///
    /// The profiler cannot be built, or the plan has no such VM.
    pub fn prepare(system: &System) -> Result<Self, Failure> {
        let period = period_of(&system.plan, CONTROL).ok_or_else(|| {
            let what = format!("the demo has no VM `{CONTROL}`");
            Failure::input(
                what,
                "its timer is what the demo watches",
                "see systems/mixed.toml",
            )
        })?;
        let el2 = Program::read(&system.el2)?;
        let instrument = Instrument {
            period: Some(period),
            ..Instrument::new(&el2)
        };
        let attached = instrument.attach(&system.folder)?;
        Ok(Self {
            attached,
            by_guest: period.by_guest,
        })
    }

    /// Value of QEMU's `-plugin`.
    pub fn plugin(&self) -> OsString {
        self.attached.argument.clone()
    }

    /// Returns the counts; none if QEMU was killed.
    pub fn read(&self) -> Option<El2Periods> {
        let periods = self.attached.profile().ok()?.periods?;
        Some(El2Periods::new(periods, self.by_guest))
    }
}
