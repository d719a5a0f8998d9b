//! Reference pages of the book say what the code says: each is made from it, and has to be what would be made.
//!
//! `BULKHEAD_BLESS=1 cargo test -p bulkhead-driver --test book` writes the pages anew.

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
use bulkhead_driver::bench::{Budgets, Published};
use bulkhead_driver::book::links;

/// Below the manifest of this package.
const PAGES: &str = "../../docs";

/// Writes all that is made anew.
const BLESS: &str = "BULKHEAD_BLESS=1 cargo test -p bulkhead-driver --test book";
/// Below the manifest of this package, and where its figures begin and end.
const README: &str = "../../README.md";
const FROM: &str = "<!-- figures: made from lab/figures.toml -->";
const TO: &str = "<!-- /figures -->";

/// Compares a page with the file of this name, or writes that.
fn hold(name: &str, made_from: &str, text: &str) {
    let path = Path::new(PAGES).join(name);
    let page = format!("<!-- Made from {made_from} by `{BLESS}`: changes go there. -->\n\n{text}");
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
        "{name} is not what the code says: {}; `{BLESS}` writes it anew",
        differ.map_or(
            "lines are missing or too many".to_owned(),
            |(wanted, found)| { format!("`{found}` should be `{wanted}`") }
        )
    );
}

#[test]
fn the_plan_format_is_that_of_the_code() {
    hold("reference/plan-format.md", "abi/src/plan.rs", &plan::page());
}

#[test]
fn exit_classes_are_those_of_the_code() {
    hold(
        "reference/exit-classes.md",
        "abi/src/exit.rs",
        &calls::exit_classes(),
    );
}

#[test]
fn calls_are_those_that_the_code_answers() {
    let sources = "abi/src/call.rs and psci.rs, smccc.rs, trng.rs, pvtime.rs in core/src";
    hold("reference/calls.md", sources, &calls::page());
}

#[test]
fn keys_of_a_description_are_those_of_its_schema() {
    let sources = "host/model/src/describe/schema.rs";
    hold("reference/description.md", sources, &description::page());
}

#[test]
fn commands_and_their_examples_are_those_of_the_parser() {
    hold(
        "reference/commands.md",
        "host/cli/src/cmd",
        &commands::page(),
    );
}

#[test]
fn figures_are_those_that_were_measured() {
    let (published, budgets) = figures();
    let page = published.page(&budgets).expect("figures and budgets");
    hold(
        "reference/figures.md",
        "lab/figures.toml and lab/budgets.toml",
        &page,
    );
}

#[test]
fn the_readme_has_figures_that_were_measured() {
    let (published, budgets) = figures();
    let wanted = published.first(&budgets).expect("figures and budgets");
    let readme = fs::read_to_string(README).expect("the README");
    let (before, rest) = readme.split_once(FROM).expect("where figures begin");
    let (found, after) = rest.split_once(TO).expect("where figures end");
    let wanted = format!("\n{wanted}");
    if std::env::var_os("BULKHEAD_BLESS").is_some() {
        let text = format!("{before}{FROM}{wanted}{TO}{after}");
        fs::write(README, text).expect("the README can be written");
    } else {
        assert_eq!(found, wanted, "`{BLESS}` writes the README's figures anew");
    }
}

fn figures() -> (Published, Budgets) {
    let published = Published::load().expect("what is published");
    (published, Budgets::load().expect("the budgets"))
}

#[test]
fn the_summary_has_every_page_once() {
    let folder = Path::new(PAGES);
    let mut pages = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(below) = folders.pop() {
        for entry in fs::read_dir(below).expect("the book") {
            let path = entry.expect("a page").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "md") {
                let name = path.strip_prefix(folder).expect("it is in the book");
                pages.insert(name.display().to_string());
            }
        }
    }
    pages.remove("SUMMARY.md");
    let summary = fs::read_to_string(folder.join("SUMMARY.md")).expect("the summary");
    let named: Vec<String> = links::relative(&summary)
        .into_iter()
        .map(|link| link.target)
        .collect();
    // mdBook leaves out what its summary does not name.
    let once: BTreeSet<String> = named.iter().cloned().collect();
    assert_eq!(named.len(), once.len(), "a page is named twice");
    let (others, once): (BTreeSet<_>, BTreeSet<_>) =
        once.into_iter().partition(|name| name.starts_with("../"));
    assert_eq!(once, pages);
    // Documents at the root of the repository are chapters, too.
    for other in others {
        assert!(folder.join(&other).is_file(), "{other}");
    }
}
