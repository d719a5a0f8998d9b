//! From the path of a description to a plan, with everything that there is to say on the way.

use std::env;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use serde_json::json;

use bulkhead_model::board::{self, PlanError};
use bulkhead_model::describe::{self, Finding, Text};
use bulkhead_model::failure::Failure;
use bulkhead_model::failure::Outcome;
use bulkhead_planner::Planned;
use bulkhead_planner::image::El2;
use bulkhead_planner::recover;

use crate::Effort;
use crate::cross_build::{self, Build};
use crate::emulated;

/// A planned system.
pub struct Prepared {
    /// Text of the description.
    pub text: Text,
    /// Findings that are no errors.
    pub findings: Vec<Finding>,
    /// The plan.
    pub planned: Planned,
    /// EL2 and its file, if it is built.
    pub el2: Option<(PathBuf, El2)>,
}

/// Reason for which there is no plan.
pub enum Stopped {
    /// The description is wrong.
    Description(Text, Vec<Finding>),
    /// Something else.
    Failure(Failure),
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<Stopped> for Failure {
    /// For callers that show failures of several systems: the diagnostics become the reason.
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Failure(failure) => failure,
            Stopped::Description(text, findings) => {
                let why = text.render(&findings, false);
                Self::input(format!("{} is wrong", text.name), why, "")
            }
        }
    }
}

impl Stopped {
    /// Says why, as text on stderr or as JSON on stdout; gives the outcome to end with.
    pub fn report(self, json: bool) -> Outcome {
        match self {
            Self::Description(text, findings) => {
                if json {
                    println!("{:#}", json!(text.verdict(&findings)));
                } else {
                    eprint!("{}", text.render(&findings, colours()));
                    let errors = findings.iter().filter(|finding| finding.is_error()).count();
                    let errors = if errors == 1 {
                        "1 error".to_owned()
                    } else {
                        format!("{errors} errors")
                    };
                    eprintln!("{}: {errors}", text.name);
                    eprint!("{}", Text::hint(&findings));
                }
                Outcome::BadInput
            }
            Self::Failure(failure) => failure.report(),
        }
    }
}

/// Whether messages have colours.
pub fn colours() -> bool {
    let unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal() && !unwanted
}

/// Reads, checks and plans the system that the file at `path` describes.
///
/// # Errors
/// The description is wrong, or something is missing.
pub fn prepare(path: &Path, effort: Effort) -> Result<Prepared, Stopped> {
    prepare_text(describe::load(path)?, effort)
}

/// The same for a text that was read before; its name tells where paths in it start.
///
/// # Errors
/// The description is wrong, or something is missing.
pub fn prepare_text(text: Text, effort: Effort) -> Result<Prepared, Stopped> {
    let el2 = |build| match effort {
        Effort::Everything => read_el2(cross_build::el2(build)?).map(Some),
        // What an earlier build left may be half of something: then it counts as not built.
        Effort::WhatIsThere => Ok(read_el2(cross_build::built_el2(build)).ok()),
    };
    finish(text, effort, &el2)
}

/// The same with an EL2 that the caller has.
///
/// # Errors
/// The description is wrong, or something is missing.
pub fn prepare_with(path: &Path, effort: Effort, el2: El2Source<'_>) -> Result<Prepared, Stopped> {
    let read = |build| read_el2(el2(build)?).map(Some);
    finish(describe::load(path)?, effort, &read)
}

/// The same as if EL2 had never been built.
///
/// # Errors
/// The description is wrong, or something is missing.
pub fn prepare_unbuilt(path: &Path, effort: Effort) -> Result<Prepared, Stopped> {
    finish(describe::load(path)?, effort, &|_| Ok(None))
}

/// Gives the path of EL2 for a build.
pub type El2Source<'a> = &'a dyn Fn(Build) -> Result<PathBuf, Failure>;

fn read_el2(path: PathBuf) -> Result<(PathBuf, El2), Failure> {
    let el2 = El2::read(&path)?;
    Ok((path, el2))
}

fn finish(text: Text, effort: Effort, el2: ReadEl2<'_>) -> Result<Prepared, Stopped> {
    let mut findings = Vec::new();
    let result = understand(&text, effort, el2, &mut findings);
    // In the order of the text, whatever the order in which they were found.
    findings.sort_by_key(|finding| finding.labels.first().map_or(0, |(span, _)| span.start));
    match result {
        Ok((planned, el2)) => Ok(Prepared {
            text,
            findings,
            planned,
            el2,
        }),
        Err(PlanError::Failure(failure)) if !findings.iter().any(Finding::is_error) => {
            Err(Stopped::Failure(failure))
        }
        Err(_) => Err(Stopped::Description(text, findings)),
    }
}

/// Gives EL2 for a build, if there is one.
type ReadEl2<'a> = &'a dyn Fn(Build) -> Result<Option<(PathBuf, El2)>, Failure>;

fn understand(
    text: &Text,
    effort: Effort,
    el2: ReadEl2<'_>,
    findings: &mut Vec<Finding>,
) -> Result<(Planned, Option<(PathBuf, El2)>), PlanError> {
    let system = describe::parse(text, findings);
    let board = board::load(&system, &emulated::device_tree, findings);
    if findings.iter().any(|finding| finding.is_error()) {
        recover::look(&system, board.ok(), &Effort::WhatIsThere, findings);
        return Err(PlanError::Description);
    }
    let board = board?;
    let profile = bulkhead_planner::profile(&system, &board);
    let el2 = el2(Build::of(&board, profile))?;
    let size = el2.as_ref().map(|(_, el2)| el2.size());
    let planned = bulkhead_planner::plan(&system, board, size, &effort, findings)?;
    Ok((planned, el2))
}
