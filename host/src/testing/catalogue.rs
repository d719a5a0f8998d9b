//! The list of all tests.

use std::path::Path;

use super::suite::Test;
use super::{code, cpus, docs, fuzz, matrix, plans, refusals, systems, whole};
use crate::failure::Failure;

/// All tests, in the order in which they are listed.
///
/// # Errors
///
/// A scenario in `tests/` cannot be used.
pub fn all(root: &Path) -> Result<Vec<Test>, Failure> {
    let mut tests = code::tests();
    tests.extend(fuzz::tests());
    tests.extend(systems::tests(root)?);
    tests.extend(matrix::tests());
    tests.extend(whole::tests());
    tests.extend(plans::tests());
    tests.extend(refusals::tests());
    tests.extend(cpus::tests());
    tests.extend(docs::tests());
    Ok(tests)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_claims_are_sentences() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let tests = all(&root).unwrap();
        let names: BTreeSet<_> = tests.iter().map(|test| &test.name).collect();
        assert_eq!(names.len(), tests.len());
        for test in &tests {
            assert!(test.claim.ends_with('.'), "{}: {}", test.name, test.claim);
        }
    }
}
