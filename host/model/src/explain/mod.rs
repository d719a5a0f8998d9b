//! Explanations of the codes of diagnostics, with examples. The texts are in the `.toml` files beside this one, one table
//! for each code:
//!
//! * `means`: what is wrong, and why it is a rule;
//! * `wrong` and `right`: descriptions that get the code and that do not. What they leave out is sound: a board, and memory and a program
//!   for each VM; unless `whole` is set. A test checks each of them;
//! * `sources`: what each overlay that they name is made from;
//! * `more`: where to read on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::describe::{Code, nearest};

/// The texts.
const FILES: [&str; 6] = [
    include_str!("board.toml"),
    include_str!("cpu.toml"),
    include_str!("text.toml"),
    include_str!("together.toml"),
    include_str!("virtio.toml"),
    include_str!("vm.toml"),
];

/// Explanation of a code.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Explanation {
    /// The error, and the reason for the rule.
    pub means: String,
    /// A description, or the part that matters, which gets the code.
    pub wrong: Option<String>,
    /// One that does not.
    pub right: Option<String>,
    /// Source of each overlay `NAME.dtbo` that an example names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sources: BTreeMap<String, String>,
    /// Whether the examples are whole descriptions.
    #[serde(default, skip_serializing)]
    pub whole: bool,
    /// Further reading: a file of the repository, or an address.
    pub more: Option<String>,
}

/// The explanation of each code.
pub fn all() -> BTreeMap<Code, Explanation> {
    let mut all = BTreeMap::new();
    for file in FILES {
        // Each of the files is read by a test, so none of them is ever passed over.
        let explanations: BTreeMap<Code, Explanation> = toml::from_str(file).unwrap_or_default();
        all.extend(explanations);
    }
    all
}

/// The short name of the code that is most like a word that is none: by its letters, or by a part of
/// it.
pub fn alike(word: &str) -> Option<&'static str> {
    let part = |known: &&str| known.split("::").any(|part| part == word);
    let names = || Code::ALL.into_iter().map(Code::short);
    nearest(word, names()).or_else(|| names().find(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_read_and_no_code_is_explained_twice() {
        let count: usize = FILES
            .iter()
            .map(|file| {
                let read: BTreeMap<Code, Explanation> = toml::from_str(file).expect("explanations");
                read.len()
            })
            .sum();
        assert_eq!(count, all().len());
    }

    #[test]
    fn every_code_is_explained() {
        let all = all();
        let missing = Code::ALL.into_iter().filter(|code| !all.contains_key(code));
        assert_eq!(missing.collect::<Vec<_>>(), []);
    }

    #[test]
    fn codes_are_found_with_and_without_their_beginning_and_the_nearest_is_named() {
        let all = all();
        for name in ["bulkhead::pcpu::shared", "pcpu::shared"] {
            assert!(Code::named(name).is_some_and(|code| all.contains_key(&code)));
        }
        assert_eq!(alike("pcpu::shraed"), Some("pcpu::shared"));
        assert_eq!(alike("overload"), Some("cpu::overload"));
        assert_eq!(alike("zzzzzzzz"), None);
    }
}
