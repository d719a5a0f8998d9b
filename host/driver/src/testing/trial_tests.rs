//! The tests that can be run on an EL2 that is not that of the checkout.

use std::path::Path;

use bulkhead_model::failure::Failure;

use super::suite::Test;
use super::{end_to_end, matrix, systems};

/// The tests of systems, of the matrix, and of what operations cost.
///
/// # Errors
///
/// The descriptions of systems cannot be read.
pub fn tests(root: &Path) -> Result<Vec<Test>, Failure> {
    let mut tests = systems::tests(root)?;
    tests.extend(matrix::tests());
    tests.extend(end_to_end::operation_tests());
    Ok(tests)
}
