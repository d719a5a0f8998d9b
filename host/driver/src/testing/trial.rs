//! Running tests on an EL2 that is not that of the checkout.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bulkhead_model::failure::{Failure, Outcome};
use bulkhead_runner::Effort;
use bulkhead_runner::build::{self, Built};
use bulkhead_runner::cross_build::Build;
use bulkhead_runner::prepare::Stopped;
use bulkhead_runner::run::System;

use super::watch::{Bounds, Ended, Ending, RunCost};

/// Seconds of the host's clock after which nothing is known: neither that a run hangs nor that it does not.
const GUARD: Duration = Duration::from_secs(900);

/// Function that gives the program of EL2 for a build.
type El2 = Box<dyn Fn(Build) -> Result<PathBuf, Failure> + Send + Sync>;

/// Properties of a run of tests on such an EL2 that others do not have.
pub struct Trial {
    /// EL2.
    pub el2: El2,
    /// Effort for payloads.
    pub effort: Effort,
    /// Folder for systems with it.
    pub folder: PathBuf,
    /// Most that a run may take.
    pub most: RunCost,
    /// Endings of runs of QEMU, with their costs.
    pub runs: Mutex<Vec<(Ending, RunCost)>>,
}

impl fmt::Debug for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trial").finish_non_exhaustive()
    }
}

impl Trial {
    /// Builds the system of a description.
    ///
    /// # Errors
    ///
    /// The description is wrong, or there is no EL2 for it.
    pub fn system(&self, description: &Path) -> Result<System, String> {
        System::build_with(description, self.effort, &self.el2, &self.folder)
            .map_err(|stopped| Failure::from(stopped).to_string())
    }

    /// The same, of a system that is measured.
    ///
    /// # Errors
    ///
    /// The description is wrong, or there is no EL2 for it.
    pub fn build(&self, description: &Path) -> Result<Built, Stopped> {
        build::build_with(description, self.effort, &self.el2, &self.folder)
    }

    /// Returns the bounds at which a run of QEMU is ended.
    pub const fn bounds(&self) -> Bounds {
        Bounds {
            host: GUARD,
            most: Some(self.most),
        }
    }

    /// Records how a run has ended.
    pub fn note(&self, ended: &Ended) {
        self.push(ended.ending, ended.cost);
    }

    /// Records that a run did not begin because an instrument does not find what it watches in EL2.
    pub fn note_refusal(&self, failure: &Failure) {
        if failure.outcome == Outcome::Failed {
            self.push(Ending::Unfit, RunCost::default());
        }
    }

    /// Records how a measurement has ended, unless the host is to blame: then nothing is known of this EL2.
    pub fn note_measured<T>(&self, measured: &Result<T, Failure>) {
        let outcome = measured
            .as_ref()
            .map_or_else(|why| why.outcome, |_| Outcome::Done);
        if matches!(outcome, Outcome::Done | Outcome::Failed) {
            self.push(Ending::Itself, RunCost::default());
        }
    }

    fn push(&self, ending: Ending, cost: RunCost) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.push((ending, cost));
    }
}
