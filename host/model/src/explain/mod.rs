//! What each code of a diagnostic means, with examples. The texts are in the `.toml` files beside this one, one table for each code:
//!
//! * `means`: what is wrong, and why it is a rule;
//! * `wrong` and `right`: descriptions that get the code and that do not. What they leave out is sound: a board, and memory and a program
//!   for each VM; unless `whole` is set. A test checks each of them;
//! * `sources`: what each overlay that they name is made from;
//! * `more`: where to read on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::describe::nearest;

/// What all codes begin with.
const PREFIX: &str = "bulkhead::";
/// The texts.
const FILES: [&str; 5] = [
    include_str!("board.toml"),
    include_str!("cpu.toml"),
    include_str!("text.toml"),
    include_str!("together.toml"),
    include_str!("vm.toml"),
];

/// What there is to say about a code.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Explanation {
    /// What is wrong, and why it is a rule.
    pub means: String,
    /// A description, or the part that matters, which gets the code.
    pub wrong: Option<String>,
    /// One that does not.
    pub right: Option<String>,
    /// What `NAME.dtbo`, an overlay that an example names, is made from.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sources: BTreeMap<String, String>,
    /// The examples are whole descriptions.
    #[serde(default, skip_serializing)]
    pub whole: bool,
    /// Where to read on: a file of the repository, or an address.
    pub more: Option<String>,
}

/// All explanations by their short codes, such as `pcpu::shared`.
pub fn all() -> BTreeMap<String, Explanation> {
    let mut all = BTreeMap::new();
    for file in FILES {
        // Each of the files is read by a test, so none of them is ever passed over.
        let explanations: BTreeMap<String, Explanation> = toml::from_str(file).unwrap_or_default();
        all.extend(explanations);
    }
    all
}

/// A code as it is looked up: `pcpu::shared` of `bulkhead::pcpu::shared`.
pub fn short(code: &str) -> &str {
    code.strip_prefix(PREFIX).unwrap_or(code)
}

/// The code that is most like one that does not exist: by its letters, or by a part of it.
pub fn alike<'a>(code: &str, known: &'a BTreeMap<String, Explanation>) -> Option<&'a str> {
    let part = |known: &&str| known.split("::").any(|part| part == code);
    let names = || known.keys().map(String::as_str);
    nearest(code, names()).or_else(|| names().find(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_read_and_no_code_is_explained_twice() {
        let count: usize = FILES
            .iter()
            .map(|file| {
                let read: BTreeMap<String, Explanation> =
                    toml::from_str(file).expect("explanations");
                read.len()
            })
            .sum();
        assert_eq!(count, all().len());
    }

    #[test]
    fn codes_are_found_with_and_without_their_beginning_and_the_nearest_is_named() {
        let all = all();
        assert!(all.contains_key(short("bulkhead::pcpu::shared")));
        assert!(all.contains_key(short("pcpu::shared")));
        assert_eq!(alike("pcpu::shraed", &all), Some("pcpu::shared"));
        assert_eq!(alike("overload", &all), Some("cpu::overload"));
        assert_eq!(alike("zzzzzzzz", &all), None);
    }
}
