//! What all verbs have in common: the connection, and how they end.

use std::fs::File;
use std::io;

use bulkhead_control::failure::{Failure, Outcome};
use bulkhead_control::manager::Manager;
use bulkhead_control::port::Access;

use crate::output::Broken;

/// Connects, and greets EL2.
///
/// # Errors
/// It cannot be reached, or does not answer.
pub fn connect(access: &Access) -> Result<Manager<File>, Failure> {
    let (connection, _) = access.connect()?;
    Manager::greet(connection)
}

/// Why a verb stops.
#[derive(Debug)]
pub enum Stop {
    /// It failed.
    Failure(Failure),
    /// Nobody reads its output any more.
    Unread,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<Broken> for Stop {
    fn from(Broken(error): Broken) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::Unread;
        }
        Self::Failure(Failure::environment("control::io", "cannot print", error))
    }
}

/// How a verb ends.
pub type Ended = Result<Outcome, Stop>;
