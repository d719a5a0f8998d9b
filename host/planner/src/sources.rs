//! The files that descriptions name as `guest:NAME` and `debian:NAME`.

use std::path::PathBuf;

use bulkhead_model::failure::Failure;
use bulkhead_model::payload::DebianPayload;

/// A source of guest programs and Debian's files. It may build and fetch them, or give what is there.
pub trait Sources {
    /// The ELF file of the guest program `name`, which exists; none: it is not built.
    ///
    /// # Errors
    /// It cannot be built.
    fn guest(&self, name: &str) -> Result<Option<PathBuf>, Failure>;

    /// The file of a payload of Debian's; none: it is not fetched.
    ///
    /// # Errors
    /// It cannot be fetched, or the cache cannot be read.
    fn debian(&self, payload: DebianPayload) -> Result<Option<PathBuf>, Failure>;
}
