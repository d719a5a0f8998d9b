//! Files: what is read from good ones, and what is said about bad ones.
//!
//! `BULKHEAD_BLESS=1 cargo test -p bulkhead-policy --test files` writes the words anew.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_control::failure::Outcome;
use bulkhead_policy::engine::rules;
use bulkhead_policy::reader::load;
use bulkhead_policy::rule::{Measure, Policy, Side};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad")
}

fn bad() -> Vec<PathBuf> {
    let entries = fs::read_dir(folder()).expect("a folder");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.retain(|file| file.extension().is_some_and(|kind| kind == "toml"));
    files.sort();
    files
}

/// What is said about a file, which has only its name there.
fn words(file: &Path) -> String {
    let Err(failures) = load(file) else {
        panic!("{} has no mistake", file.display());
    };
    assert!(
        failures
            .iter()
            .all(|failure| failure.outcome == Outcome::BadInput)
    );
    let words: Vec<String> = failures
        .iter()
        .map(|failure| format!("{failure}\n"))
        .collect();
    words
        .concat()
        .replace(&format!("{}/", folder().display()), "")
}

#[test]
fn every_mistake_is_told_with_its_place_and_what_to_do() {
    let bless = std::env::var_os("BULKHEAD_BLESS").is_some();
    let mut wrong = String::new();
    let files = bad();
    assert!(files.len() >= 18, "{}", files.len());
    for file in files {
        let words = words(&file);
        assert!(words.contains("\n  = help: "), "{words}");
        let expected = file.with_extension("txt");
        if bless {
            fs::write(&expected, &words).expect("written");
        } else if fs::read_to_string(&expected).ok().as_deref() != Some(&words) {
            wrong += &words;
        }
    }
    assert!(
        wrong.is_empty(),
        "other words than in the .txt file:\n{wrong}"
    );
}

#[test]
fn a_file_that_is_not_there_is_a_matter_of_the_environment() {
    let failures = load(Path::new("/nonexistent/policy.toml")).expect_err("not there");
    assert_eq!(
        (failures.len(), failures[0].outcome),
        (1, Outcome::Environment)
    );
}

fn good(source: &str) -> Policy {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.toml");
    fs::write(&file, source).expect("a file");
    load(&file).unwrap_or_else(|failures| panic!("{}", failures[0]))
}

#[test]
fn a_file_without_rules_is_a_policy_that_moves_nothing() {
    let policy = good("");
    assert_eq!(
        (policy.rules.len(), policy.interval),
        (0, Duration::from_secs(1))
    );
}

#[test]
fn what_is_not_stated_is_what_the_reference_says() {
    let policy = good(
        "[rule.busy]\nvms = [\"a\", \"b\"]\nweight = { from = 100, to = 350, step = 100 }\n\
         when = { vm = \"c\", measure = \"cpu\", above = \"12.5%\" }\nback = { below = \"1%\" }\n",
    );
    let rule = &policy.rules[0];
    let second = Duration::from_secs(1);
    assert_eq!((rule.when.held, rule.back.held), (3 * second, 3 * second));
    assert_eq!((rule.pause, rule.priority), (10 * second, 0));
    assert_eq!(
        (rule.back.measure.value, rule.back.side),
        (Measure::Cpu, Side::Below)
    );
    assert_eq!(rule.back.vm, rule.when.vm);
    assert_eq!(rule.when.threshold, 0.125);
    let steps: Vec<String> = rule.steps.iter().map(ToString::to_string).collect();
    assert_eq!(steps, ["100", "200", "300", "350"]);
    assert_eq!(
        rules(&policy),
        [
            "busy: weight of a, b from 100 to 350 when c cpu above 12.5% for 3s; back when c cpu below 1.0% for 3s; 10s between moves"
        ]
    );
}

#[test]
fn caps_go_down_as_well_and_none_is_the_whole_period() {
    let policy = good(
        "[rule.calm]\nvms = [\"a\"]\ncap = { from = \"none\", to = \"3ms/10ms\", step = \"4ms\" }\n\
         when = { measure = \"exits\", above = 20000, for = \"0s\" }\nback = { below = 0x10 }\n",
    );
    let rule = &policy.rules[0];
    let steps: Vec<String> = rule.steps.iter().map(ToString::to_string).collect();
    assert_eq!(steps, ["none", "6ms/10ms", "3ms/10ms"]);
    assert_eq!(
        (rule.when.held, rule.back.held),
        (Duration::ZERO, Duration::ZERO)
    );
}

#[test]
fn the_example_that_is_delivered_is_sound() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bulkheadd/policy.toml.example");
    let policy = load(&example).unwrap_or_else(|failures| panic!("{}", failures[0]));
    assert!(policy.rules.len() >= 3);
}
