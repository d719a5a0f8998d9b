//! The list of all tests.

use std::path::Path;

use bulkhead_model::failure::Failure;

use super::suite::Test;
use super::{
    attach, bare, boards, book, code, cpus, docs, end_to_end, fuzz, init, interference, interrupt,
    matrix, mutants, page, plans, proxy, refusals, steady, systems, uboot,
};

/// All tests, in the order in which they are listed.
///
/// # Errors
///
/// A scenario in `tests/` cannot be used.
pub fn all(root: &Path) -> Result<Vec<Test>, Failure> {
    let mut tests = code::tests();
    tests.extend(fuzz::tests());
    tests.extend(systems::tests(root)?);
    tests.extend(bare::tests());
    tests.extend(matrix::tests());
    tests.extend(end_to_end::tests());
    tests.extend(interference::tests());
    tests.extend(plans::tests());
    tests.extend(refusals::tests());
    tests.extend(steady::tests());
    tests.extend(uboot::tests());
    tests.extend(cpus::tests());
    tests.extend(boards::tests());
    tests.extend(init::tests());
    tests.extend(proxy::tests());
    tests.extend(docs::tests());
    tests.extend(page::tests());
    tests.extend(attach::tests());
    tests.extend(mutants::tests());
    tests.extend(interrupt::tests());
    tests.extend(book::tests(root));
    Ok(tests)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_claims_are_sentences() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let tests = all(&root).unwrap();
        let names: BTreeSet<_> = tests.iter().map(|test| &test.name).collect();
        assert_eq!(names.len(), tests.len());
        for test in &tests {
            assert!(test.claim.ends_with('.'), "{}: {}", test.name, test.claim);
        }
    }
}
