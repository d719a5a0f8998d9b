//! What holds for each key and each rule.

use super::*;

/// All tables, also that of the whole file.
fn tables() -> impl Iterator<Item = &'static Table> {
    TABLES.into_iter().chain([SYSTEM])
}

#[test]
fn names_of_tables_and_of_keys_are_there_once() {
    let mut names: Vec<_> = tables().map(|table| table.name).collect();
    names.sort_unstable();
    assert!(names.is_sorted_by(|one, next| one < next), "{names:?}");
    for table in tables() {
        let mut names: Vec<_> = table.names().collect();
        names.sort_unstable();
        assert!(names.is_sorted_by(|one, next| one < next), "{names:?}");
    }
}

#[test]
fn every_key_has_a_meaning_and_what_holds_no_table_an_example() {
    for key in tables().flat_map(|table| table.keys) {
        assert!(!key.meaning.is_empty(), "{key:?}");
        let is_table = matches!(
            key.kind,
            Kind::Table(_)
                | Kind::Tables(_)
                | Kind::Named(..)
                | Kind::PerVm(..)
                | Kind::WordsPerVm(_)
        );
        assert!(is_table || !key.example().is_empty(), "{key:?}");
    }
}

#[test]
fn rules_are_about_keys_of_their_table() {
    for table in tables() {
        for rule in table.rules {
            let named: Vec<&str> = match *rule {
                Rule::Has(keys) | Rule::Any(keys) => keys.to_vec(),
                Rule::Either(groups) => groups.concat(),
                Rule::Both(one, other) => vec![one, other],
                Rule::Without(key, keys)
                | Rule::When(key, _, keys)
                | Rule::OnlyWhen(key, _, keys)
                | Rule::AnyWhen(key, _, keys) => [&[key], keys].concat(),
            };
            for name in named {
                assert_eq!(table.key(name).name, name);
            }
        }
    }
}

#[test]
fn names_are_the_same_if_all_of_their_letters_are() {
    assert!(same("pcpus", "pcpus") && same("", ""));
    assert!(!same("cpu", "cpus") && !same("cpus", "cpu") && !same("cpu", "gpu"));
}
