//! A first description: what `init` writes runs.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::suite::{Context, Job, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let job: Job = Box::new(first_try);
    vec![Test::parallel(
        "init/run",
        "What `init` writes without a question is sound, and runs at the first try; it is not written over.",
        job,
    )]
}

/// Runs this tool in the repository, without a terminal.
fn tool(context: &Context, words: &[&str], file: &Path) -> Result<Output, Vec<String>> {
    let path = std::env::current_exe().map_err(|e| vec![format!("where is this tool? {e}")])?;
    let mut command = Command::new(path);
    command.current_dir(&context.root).stdin(Stdio::null());
    let output = command.args(words).arg(file).output();
    output.map_err(|e| vec![e.to_string()])
}

fn first_try(context: &Context) -> Result<String, Vec<String>> {
    let folder = tempfile::tempdir().map_err(|e| vec![e.to_string()])?;
    let file = folder.path().join("new/first-try.toml");
    let init: &[&str] = &[
        "init",
        "--guest",
        "guest:hello",
        "--guest",
        "again=guest:hello",
    ];
    let steps = [
        (init, 0),
        (&["check"], 0),
        (&["run", "--timeout", "120"], 0),
        (init, 2),
    ];
    let mut said = String::new();
    let mut written = None;
    for (words, wanted) in steps {
        let output = tool(context, words, &file)?;
        if output.status.code() != Some(wanted) {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(vec![
                format!("{words:?} ended with {}, not {wanted}", output.status),
                errors,
            ]);
        }
        said.push_str(&String::from_utf8_lossy(&output.stdout));
        let now = fs::read(&file).map_err(|e| vec![e.to_string()])?;
        if written.get_or_insert_with(|| now.clone()) != &now {
            return Err(vec![format!("{words:?} has changed the description")]);
        }
    }
    match said.matches("hello from EL1").count() {
        2 => Ok("two guests".to_owned()),
        n => Err(vec![format!("{n} guests said hello, not 2"), said]),
    }
}
