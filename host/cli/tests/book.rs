//! Reference pages of the book say what the code says: each is made from it, and has to be what would be made.
//!
//! `BULKHEAD_BLESS=1 cargo test -p bulkhead --test book` writes the pages anew.

mod book {
    pub mod calls;
    pub mod commands;
    pub mod description;
    pub mod plan;
    pub mod source;
}

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use book::{calls, commands, description, plan};

/// Below the manifest of this package.
const PAGES: &str = "../../docs/book/src";

/// Compares a page with the file of this name, or writes that.
fn hold(name: &str, made_from: &str, text: &str) {
    let path = Path::new(PAGES).join(name);
    let bless = "BULKHEAD_BLESS=1 cargo test -p bulkhead --test book";
    let page = format!("<!-- Made from {made_from} by `{bless}`: changes go there. -->\n\n{text}");
    if std::env::var_os("BULKHEAD_BLESS").is_some() {
        fs::write(&path, &page).expect("the page can be written");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    let differ = page
        .lines()
        .zip(found.lines())
        .find(|(wanted, found)| wanted != found);
    assert!(
        page == found,
        "{name} is not what the code says: {}; `{bless}` writes it anew",
        differ.map_or(
            "lines are missing or too many".to_owned(),
            |(wanted, found)| { format!("`{found}` should be `{wanted}`") }
        )
    );
}

#[test]
fn the_plan_format_is_that_of_the_code() {
    hold("plan-format.md", "abi/src/plan.rs", &plan::page());
}

#[test]
fn exit_classes_are_those_of_the_code() {
    hold("exit-classes.md", "abi/src/exit.rs", &calls::exit_classes());
}

#[test]
fn calls_are_those_that_the_code_answers() {
    let sources = "abi/src/call.rs and psci.rs, smccc.rs, trng.rs, pvtime.rs in core/src";
    hold("calls.md", sources, &calls::page());
}

#[test]
fn keys_of_a_description_are_those_of_its_schema() {
    let sources = "host/model/src/describe/schema.rs";
    hold("description.md", sources, &description::page());
}

#[test]
fn commands_and_their_examples_are_those_of_the_parser() {
    hold("commands.md", "host/cli/src/cmd", &commands::page());
}

#[test]
fn the_summary_has_every_page_once() {
    let pages = fs::read_dir(PAGES).expect("the book");
    let pages: BTreeSet<String> = pages
        .map(|entry| entry.expect("a page").file_name().to_string_lossy().into())
        .filter(|name| name != "SUMMARY.md")
        .collect();
    let summary = fs::read_to_string(Path::new(PAGES).join("SUMMARY.md")).expect("the summary");
    let targets = summary.split("](").skip(1);
    let named: Vec<&str> = targets
        .filter_map(|rest| Some(rest.split_once(')')?.0))
        .collect();
    // mdBook leaves out what its summary does not name.
    let once: BTreeSet<String> = named.iter().map(|&name| name.to_owned()).collect();
    assert_eq!(once, pages);
    assert_eq!(named.len(), pages.len(), "a page is named twice");
}
