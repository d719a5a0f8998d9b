//! `bulkhead book`: the book in a browser.

use std::io::{self, Read};
use std::process::{Command, Stdio};

use bulkhead_cli::cmd::book::{ADVICE, Args, Question, RENDERER, Step};
use bulkhead_model::checkout;
use bulkhead_model::failure::{Failure, Outcome};

use crate::book;

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    match args.step {
        None => render(args.open).unwrap_or_else(Failure::report),
        Some(Step::Preprocess {
            question: Some(Question::Supports { .. }),
        }) => Outcome::Done,
        Some(Step::Preprocess { question: None }) => preprocess().unwrap_or_else(Failure::report),
    }
}

fn render(open: bool) -> Result<Outcome, Failure> {
    let root = checkout::root();
    let mut command = Command::new(RENDERER);
    command.arg("build").args(open.then_some("--open"));
    command.arg(root.join(book::PAGES)).stdin(Stdio::null());
    let status = command.status().map_err(|why| {
        let what = "cannot run mdbook, which renders the book";
        Failure::environment(what, why, ADVICE)
    })?;
    if !status.success() {
        let what = "mdbook has not rendered the book";
        return Err(Failure::failed(what, status, "what it said stands above"));
    }
    println!("{}", root.join("out/book/index.html").display());
    Ok(Outcome::Done)
}

fn preprocess() -> Result<Outcome, Failure> {
    let what = "cannot make the chapters of the book";
    let advice = "this is for mdBook, which docs/book.toml tells of it";
    let mut input = String::new();
    io::stdin()
        .read_to_string(&mut input)
        .map_err(|why| Failure::environment(what, why, advice))?;
    let book = book::preprocess(&input).map_err(|why| Failure::input(what, why, advice))?;
    println!("{book}");
    Ok(Outcome::Done)
}
