//! Every mistake that the tool knows has a description that makes it, and the exact words about it.
//!
//! `BULKHEAD_BLESS=1 cargo test -p bulkhead --test diagnostics` writes the words anew.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use bulkhead_model::describe::{Code, Finding, Text};
use bulkhead_runner::Effort;
use bulkhead_runner::prepare::{Prepared, Stopped, prepare, prepare_text, prepare_unbuilt};

use codes::named_in_sources;

mod codes;

/// Findings that depend on what was built or fetched before, so that no fixture has them, and one that
/// needs payloads larger than a repository should hold.
const NOT_HERE: [Code; 2] = [Code::ImageAbsent, Code::MemoryImage];

fn fixtures() -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir("tests/fixtures/bad")
        .expect("folder of fixtures")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "toml"))
        .collect();
    files.sort();
    files
}

fn findings(path: &Path) -> (Text, Vec<Finding>) {
    found(path, prepare_unbuilt(path, Effort::WhatIsThere))
}

fn found(path: &Path, result: Result<Prepared, Stopped>) -> (Text, Vec<Finding>) {
    match result {
        Ok(prepared) => (prepared.text, prepared.findings),
        Err(Stopped::Description(text, findings)) => (text, findings),
        Err(Stopped::Failure(failure)) => panic!("{}: {failure}", path.display()),
    }
}

fn words(path: &Path) -> String {
    let (text, findings) = findings(path);
    text.render(&findings, false)
}

#[test]
fn who_writes_what_a_wrong_kind_of_value_is_answered_with_is_not_refused_again() {
    let mut tried = 0;
    for path in fixtures() {
        let (text, found) = findings(&path);
        for finding in found {
            let help = finding.help.as_deref().unwrap_or_default();
            let said = help
                .strip_prefix("write ")
                .and_then(|help| help.strip_suffix(", for instance"));
            let (Some(said), Code::ValueType) = (said, finding.code) else {
                continue;
            };
            let (_, value) = said.split_once(" = ").expect("a key and its value");
            let place = finding.labels.first().expect("a place").0.clone();
            let mut source = text.source.to_string();
            source.replace_range(place.clone(), value);
            let text = Text {
                name: text.name.clone(),
                source: source.into(),
            };
            let now = match prepare_text(text, Effort::WhatIsThere) {
                Ok(prepared) => prepared.findings,
                Err(Stopped::Description(_, findings)) => findings,
                Err(Stopped::Failure(failure)) => panic!("{said}: {failure}"),
            };
            // Whether there is such a file, board or VM the tool does not know.
            let of_value = |code: Code| code.subject() == "value" || code == Code::DeviceIntid;
            let again = now.iter().find(|finding| {
                of_value(finding.code)
                    && finding.labels.iter().any(|(at, _)| at.start == place.start)
            });
            assert!(again.is_none(), "{}: {said}: {again:#?}", path.display());
            tried += 1;
        }
    }
    assert!(tried > 20, "{tried} remedies");
}

#[test]
fn every_finding_has_a_place_a_reason_and_a_remedy() {
    for path in fixtures() {
        let (text, findings) = findings(&path);
        for finding in findings {
            let name = path.display();
            let place = finding.labels.first();
            let (span, reason) = place.unwrap_or_else(|| panic!("{name}: {finding:?}"));
            let inside = span.end <= text.source.len();
            assert!(inside, "{name}: not in the text: {finding:?}");
            assert!(!reason.is_empty(), "{name}: no reason: {finding:?}");
            let remedy = finding.help.as_deref().unwrap_or_default();
            assert!(!remedy.is_empty(), "{name}: no remedy: {finding:?}");
        }
    }
}

#[test]
fn mistakes_of_two_parties_show_both() {
    let mut shown = BTreeSet::new();
    for path in fixtures() {
        let (text, findings) = findings(&path);
        let tables = text.tables();
        for finding in findings {
            let places = finding.labels.iter().map(|(span, _)| span.start);
            let places: BTreeSet<_> = places
                .filter_map(|start| tables.iter().position(|table| table.contains(&start)))
                .collect();
            if places.len() > 1 {
                // One mistake says the same of other names and numbers.
                let plain = |text: &str| -> String {
                    let quoted = text.split('`').step_by(2).collect::<String>();
                    quoted.chars().filter(|c| !c.is_ascii_digit()).collect()
                };
                let reasons: String = finding.labels.iter().map(|(_, why)| plain(why)).collect();
                shown.insert((finding.code, plain(&finding.message), reasons));
            }
        }
    }
    assert!(
        shown.len() >= 25,
        "only {} mistakes show two parties: {shown:#?}",
        shown.len()
    );
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

/// What is built here, and so this test, differs from machine to machine: the words must not.
#[test]
fn no_word_depends_on_whether_el2_was_built() {
    for path in fixtures() {
        let (text, findings) = found(&path, prepare(&path, Effort::WhatIsThere));
        let built = text.render(&findings, false);
        assert_eq!(built, words(&path), "{}", path.display());
    }
}

#[test]
fn every_code_has_a_fixture() {
    let shown: BTreeSet<Code> = fixtures()
        .iter()
        .flat_map(|path| findings(path).1)
        .map(|finding| finding.code)
        .collect();
    let missing: Vec<_> = Code::ALL
        .into_iter()
        .filter(|code| !shown.contains(code) && !NOT_HERE.contains(code))
        .collect();
    assert!(missing.is_empty(), "no fixture shows {missing:?}");
}

#[test]
fn the_list_of_codes_has_those_that_the_sources_name_and_no_others() {
    let listed: BTreeSet<String> = Code::ALL.map(|code| format!("{code:?}")).into();
    assert_eq!(named_in_sources(), listed);
}
