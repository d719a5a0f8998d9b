//! Rules of the house that no lint can check for code that is built for another machine: where `unsafe`
//! may stand, that each block says which invariant makes it sound, and how long a file may be.

use std::fs;
use std::path::{Path, PathBuf};

/// Rooms in which `unsafe` is allowed.
const ROOMS: [&str; 7] = [
    "el2/src/hw/",
    "guests/",
    "lab/plugin/",
    "lab/profiler/",
    "lab/sanitizer/",
    "host/runner/src/sys.rs",
    "fuzz/src/sys.rs",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Rust files of the workspace, as path from the root and text.
fn sources() -> Vec<(String, String)> {
    let root = root();
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = ["abi", "core", "el2", "fuzz", "guests", "host", "lab"]
        .iter()
        .map(|name| root.join(name))
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path
                    .strip_prefix(&root)
                    .unwrap()
                    .to_string_lossy()
                    .into_owned();
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(found.len() > 50, "the sources were not found");
    found
}

/// The code of a line, without comment and without what stands in quotes.
fn code(line: &str) -> String {
    let mut code = String::new();
    let mut quoted = false;
    for part in line.split('"') {
        if !quoted {
            code.push_str(part);
        }
        quoted = !quoted;
    }
    code.split("//").next().unwrap_or_default().to_owned()
}

fn is_word(code: &str, word: &str) -> bool {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|one| one == word)
}

#[test]
fn unsafe_stays_in_its_rooms() {
    for (name, text) in sources() {
        if ROOMS.iter().any(|room| name.starts_with(room)) || name == "host/driver/tests/house.rs" {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            assert!(
                !is_word(&code(line), "unsafe"),
                "{name}:{}: unsafe outside its rooms",
                number + 1
            );
        }
    }
}

#[test]
fn every_unsafe_block_names_its_invariant() {
    let invariants = fs::read_to_string(root().join("docs/unsafe.md")).unwrap();
    let mut blocks = 0;
    for (name, text) in sources() {
        if !name.starts_with("el2/src/hw/") {
            continue;
        }
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let code = code(line);
            if !is_word(&code, "unsafe")
                || !code.contains("unsafe {") && !code.trim_end().ends_with("unsafe")
            {
                continue;
            }
            blocks += 1;
            let place = format!("{name}:{}", number + 1);
            let above = &lines[number.saturating_sub(5)..number];
            let tag = above.iter().rev().find_map(|line| {
                line.split_once("SAFETY: [")?
                    .1
                    .split_once(']')
                    .map(|(tag, _)| tag)
            });
            let tag = tag.unwrap_or_else(|| panic!("{place}: no `// SAFETY: [R-..]` above"));
            assert!(
                invariants.contains(tag),
                "{place}: docs/unsafe.md does not know {tag}"
            );
        }
    }
    assert!(blocks > 30, "the blocks were not found");
}

#[test]
fn no_file_is_a_room_to_get_lost_in() {
    for (name, text) in sources() {
        let lines = text.lines().count();
        assert!(lines <= 600, "{name} has {lines} lines");
    }
}
