//! What keeps a board, or a plan for it, from being made.

use crate::failure::Failure;

/// Why there is no board.
pub enum Trouble {
    /// The description is wrong, which the findings tell.
    Description,
    /// Something else.
    Failure(Failure),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}
