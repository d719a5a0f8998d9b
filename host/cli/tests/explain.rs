//! Every code is explained, nothing else is, and the examples are what they say.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use toml::{Table, Value};

use bulkhead_model::describe::{Code, Finding, Text};
use bulkhead_model::explain::{self, Explanation};
use bulkhead_runner::Effort;
use bulkhead_runner::prepare::{Stopped, prepare_text};

/// Files that examples name, and the fixtures that they are.
const FILES: [(&str, &str); 11] = [
    ("board.dtb", "virt.dtb"),
    ("silent.dtb", "no-pmu.dtb"),
    ("firmware.dtb", "firmware.dtb"),
    ("source.dtb", "no-memory.dtb"),
    ("mask.bin", "mask.bin"),
    ("watchdog.dtb", "watchdog.dtb"),
    ("program.bin", "raw.bin"),
    ("notes.txt", "notes.txt"),
    ("empty.img", "empty.img"),
    ("Image", "kernel.img"),
    ("large-Image", "large-kernel.img"),
];
/// Folder of the overlays of examples, each with its source.
const OVERLAYS: &str = "tests/fixtures/overlays/explain";
/// Codes without examples: they need what was not built or fetched, a board that QEMU makes, or more lines than
/// anybody would read.
const WITHOUT_EXAMPLE: [Code; 7] = [
    Code::DoorbellMany,
    Code::DoorbellSpi,
    Code::ImageAbsent,
    Code::MemoryImage,
    Code::PlanLarge,
    Code::VirtioMany,
    Code::VmMany,
];
/// Codes of which the right example would start QEMU.
const WITHOUT_RIGHT: [Code; 1] = [Code::BoardValue];

#[test]
fn every_code_has_an_explanation_and_every_explanation_a_code() {
    let explained: BTreeSet<Code> = explain::all().into_keys().collect();
    let codes = BTreeSet::from(Code::ALL);
    let missing: Vec<_> = codes.difference(&explained).collect();
    assert!(missing.is_empty(), "not explained: {missing:?}");
    let stray: Vec<_> = explained.difference(&codes).collect();
    assert!(stray.is_empty(), "explained, and no code: {stray:?}");
}

/// The whole description of which an example is a part.
fn whole(explanation: &Explanation, example: &str) -> String {
    // What is no TOML cannot be completed.
    let (false, Ok(mut table)) = (explanation.whole, example.parse::<Table>()) else {
        return match explanation.whole {
            true => example.to_owned(),
            false => format!("[board]\ndtb = \"board.dtb\"\n\n{example}"),
        };
    };
    let board = || Value::Table(Table::from_iter([("dtb".to_owned(), "board.dtb".into())]));
    table.entry("board").or_insert_with(board);
    let vms = table.entry("vm").or_insert(Value::Table(Table::new()));
    let vms = vms.as_table_mut().expect("tables of VMs");
    if vms.is_empty() {
        vms.insert("one".to_owned(), Value::Table(Table::new()));
    }
    for vm in vms.iter_mut().filter_map(|(_, vm)| vm.as_table_mut()) {
        vm.entry("memory").or_insert("4MiB".into());
        if !vm.contains_key("kernel") && !vm.contains_key("image") {
            vm.insert("image".to_owned(), "program.bin".into());
            vm.entry("load").or_insert("0x40080000".into());
        }
    }
    table.to_string()
}

/// Returns the findings of the tool in an example.
fn found(folder: &Path, explanation: &Explanation, example: &str) -> Vec<Finding> {
    let text = Text {
        name: folder.join("example.toml").display().to_string(),
        source: whole(explanation, example).into(),
    };
    match prepare_text(text, Effort::WhatIsThere) {
        Ok(prepared) => prepared.findings,
        Err(Stopped::Description(_, findings)) => findings,
        Err(Stopped::Failure(failure)) => panic!("{example}: {failure}"),
    }
}

#[test]
fn wrong_examples_get_their_code_and_right_ones_are_sound() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, fixture) in FILES {
        let fixture = Path::new("tests/fixtures").join(fixture);
        fs::copy(fixture, folder.path().join(name)).expect("a fixture");
    }
    for (name, source) in explain::all().into_values().flat_map(|entry| entry.sources) {
        let file = Path::new(OVERLAYS).join(name);
        let kept = fs::read_to_string(file.with_extension("dtso")).expect("a source");
        assert_eq!(source, kept, "{file:?} was made from something else");
        let overlay = file.with_extension("dtbo");
        let name = overlay.file_name().expect("a name");
        fs::copy(&overlay, folder.path().join(name)).expect("an overlay");
    }
    let mut untrue = Vec::new();
    for (code, explanation) in explain::all() {
        let found = |example: &str| found(folder.path(), &explanation, example);
        let none = WITHOUT_EXAMPLE.contains(&code);
        match &explanation.wrong {
            None => assert!(none, "{code} has no example"),
            Some(wrong) => {
                let found = found(wrong);
                // Nothing else is wrong with it, or it would teach two things at once.
                if found.is_empty() || found.iter().any(|finding| finding.code != code) {
                    untrue.push(format!("the wrong example of {code}: {found:#?}"));
                }
            }
        }
        match &explanation.right {
            None => assert!(
                none || WITHOUT_RIGHT.contains(&code),
                "{code} has no right example"
            ),
            Some(right) => {
                let found = found(right);
                if !found.is_empty() {
                    untrue.push(format!("the right example of {code}: {found:#?}"));
                }
            }
        }
    }
    assert!(untrue.is_empty(), "{}", untrue.join("\n"));
}

#[test]
fn where_to_read_on_is_there() {
    for (code, explanation) in explain::all() {
        if let Some(more) = explanation
            .more
            .filter(|more| !more.starts_with("https://"))
        {
            let file = Path::new("../..").join(&more);
            assert!(file.is_file(), "{code}: there is no {more}");
        }
    }
}

#[test]
fn every_finding_says_how_to_read_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let explanation = explain::all().remove(&Code::BoardDtb).expect("explained");
    let wrong = explanation.wrong.clone().expect("an example");
    let findings = found(folder.path(), &explanation, &wrong);
    assert!(Text::hint(&findings).contains("bulkhead explain CODE, such as board::dtb"));
    assert_eq!(Text::hint(&[]), "");
    let text = Text {
        name: "example.toml".to_owned(),
        source: "[board]\ndtb = \"no-such-file.dtb\"\n".into(),
    };
    let findings = [Finding::new(Code::BoardDtb, "what")
        .at(14..32, "why")
        .help("do")];
    let expected = serde_json::json!([{
        "code": "bulkhead::board::dtb",
        "severity": "error",
        "message": "what",
        "places": [{
            "file": "example.toml", "line": 2, "column": 7,
            "end": { "line": 2, "column": 25 }, "length": 18, "label": "why",
        }],
        "reason": "why",
        "remedy": "do",
        "explain": "board::dtb",
    }]);
    let expected = serde_json::json!({ "ok": false, "findings": expected });
    assert_eq!(serde_json::json!(text.verdict(&findings)), expected);
}
