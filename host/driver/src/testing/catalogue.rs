//! The list of all tests.

use std::path::Path;

use bulkhead_model::failure::Failure;

use super::suite::Test;
use super::{
    attach, bare, boards, book, code, cpus, docs, end_to_end, fuzz, init, interrupt, matrix,
    mutants, page, plans, proxy, refusals, steady, systems, uboot,
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

    /// The table of cases in which others failed names tests that there are.
    #[test]
    fn the_document_names_tests_that_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let tests = all(&root).unwrap();
        let kinds: BTreeSet<_> = tests
            .iter()
            .filter_map(|test| test.name.split('/').next())
            .collect();
        let text = std::fs::read_to_string(root.join("docs/internals/testing.md")).unwrap();
        let rows = text
            .split("## Where other hypervisors failed")
            .nth(1)
            .unwrap();
        let rows = rows.split("\n## ").next().unwrap();
        let words = rows.split('`').skip(1).step_by(2);
        let named = words.filter(|word| {
            word.split_once('/')
                .is_some_and(|(kind, _)| kinds.contains(kind))
        });
        let mut count = 0;
        for word in named {
            let found = tests.iter().any(|test| {
                let rest = test.name.strip_prefix(word);
                rest.is_some_and(|rest| {
                    rest.is_empty() || rest.starts_with('/') || word.ends_with('/')
                })
            });
            assert!(
                found,
                "docs/internals/testing.md names `{word}`, which is no test"
            );
            count += 1;
        }
        assert!(count > 20, "{count}");
    }
}
