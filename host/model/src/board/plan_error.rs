//! What keeps a board, or a plan for it, from being made.

use crate::failure::Failure;

/// Why there is no board.
pub enum PlanError {
    /// The description is wrong, which the findings tell.
    Description,
    /// Something else.
    Failure(Failure),
}

impl From<Failure> for PlanError {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}
