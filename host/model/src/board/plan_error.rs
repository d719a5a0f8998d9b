//! Errors that keep a board, or a plan for it, from being made.

use crate::failure::Failure;

/// Reason why there is no board, or no plan.
pub enum PlanError {
    /// The description is wrong, as the findings say.
    Description,
    /// Something else.
    Failure(Failure),
}

impl From<Failure> for PlanError {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}
