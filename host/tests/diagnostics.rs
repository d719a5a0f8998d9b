//! Every mistake that the tool knows has a description that makes it, and the exact words about it.
//!
//! `BULKHEAD_BLESS=1 cargo test -p bulkhead --test diagnostics` writes the words anew.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use bulkhead_host::planner::Effort;
use bulkhead_host::system::{Stopped, prepare};

/// Findings that depend on what was built or fetched before, so that no fixture has them, and one that
/// needs payloads larger than a repository should hold.
const NOT_HERE: [&str; 2] = ["bulkhead::image::absent", "bulkhead::memory::image"];

fn fixtures() -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir("tests/fixtures/bad")
        .expect("folder of fixtures")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "toml"))
        .collect();
    files.sort();
    files
}

fn words(path: &Path) -> String {
    match prepare(path, Effort::WhatIsThere) {
        Ok(prepared) => prepared.text.render(&prepared.findings, false),
        Err(Stopped::Description(text, findings)) => text.render(&findings, false),
        Err(Stopped::Failure(failure)) => panic!("{}: {failure}", path.display()),
    }
}

#[test]
fn every_mistake_gets_its_exact_message() {
    let bless = std::env::var_os("BULKHEAD_BLESS").is_some();
    let mut wrong = Vec::new();
    for path in fixtures() {
        let words = words(&path);
        assert!(!words.is_empty(), "{} has no fault", path.display());
        let expected = path.with_extension("txt");
        if bless {
            fs::write(&expected, &words).expect("write");
        } else if fs::read_to_string(&expected).ok().as_deref() != Some(&words) {
            wrong.push(format!("{}:\n{words}", path.display()));
        }
    }
    assert!(
        wrong.is_empty(),
        "other words than in the .txt file:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn every_code_has_a_fixture() {
    let mut codes = BTreeSet::new();
    for folder in ["describe", "board", "planner"] {
        for entry in fs::read_dir(Path::new("src").join(folder)).expect("sources") {
            let text = fs::read_to_string(entry.expect("entry").path()).expect("source");
            let quoted = text
                .split('"')
                .filter(|part| part.starts_with("bulkhead::"));
            codes.extend(quoted.map(str::to_owned));
        }
    }
    let shown: String = fixtures()
        .iter()
        .map(|path| fs::read_to_string(path.with_extension("txt")).unwrap_or_default())
        .collect();
    let missing: Vec<_> = codes
        .iter()
        .filter(|code| !shown.contains(code.as_str()) && !NOT_HERE.contains(&code.as_str()))
        .collect();
    assert!(missing.is_empty(), "no fixture shows {missing:?}");
}
