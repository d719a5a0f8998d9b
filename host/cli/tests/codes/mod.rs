//! The codes that the sources of the tool name.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The file that lists all codes, and says nothing of where they come from.
const LIST: &str = "describe/code.rs";

/// The variants that stand in the sources as `Code::VARIANT`, but for tests and the list itself.
pub fn named_in_sources() -> BTreeSet<String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let host = here.ancestors().find(|folder| folder.ends_with("host"));
    let mut named = BTreeSet::new();
    let mut folders: Vec<PathBuf> = vec![host.expect("the folder of the tool").to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("sources") {
            let path = entry.expect("entry").path();
            let is_source = path.extension().is_some_and(|ending| ending == "rs");
            if path.is_dir() && !path.ends_with("tests") {
                folders.push(path);
            } else if is_source && !path.ends_with(LIST) {
                named.extend(named_in(&fs::read_to_string(path).expect("source")));
            }
        }
    }
    named
}

fn named_in(text: &str) -> impl Iterator<Item = String> {
    let behind = text.split("Code::").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric());
        rest.get(..end.unwrap_or(rest.len()))
    });
    // `ExitCode::from`, `Code::ALL` and `Code::named` are no variants.
    let variant = |name: &&str| {
        let mut letters = name.chars();
        letters.next().is_some_and(|c| c.is_ascii_uppercase())
            && letters.next().is_some_and(|c| c.is_ascii_lowercase())
    };
    behind.filter(variant).map(str::to_owned)
}
