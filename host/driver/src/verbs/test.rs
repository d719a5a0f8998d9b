//! `bulkhead test`: runs everything that proves what the project claims.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::json;

use bulkhead_cli::cmd::test::Args;
use bulkhead_model::checkout;
use bulkhead_model::failure::{Failure, Outcome};
use bulkhead_runner::temp_files;

use crate::testing::{self, Context, Done, Test, Told};

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    let root = checkout::root();
    let mut tests = match testing::all(&root) {
        Ok(tests) => tests,
        Err(failure) => return failure.report(),
    };
    if !args.filter.is_empty() {
        tests.retain(|test| args.filter.iter().any(|part| test.name.contains(part)));
    } else if !args.all && !args.list {
        tests.retain(|test| test.on_request.is_none());
    }
    if tests.is_empty() {
        eprintln!(
            "error: no test has such a name\n  = help: `bulkhead test --list` names them all"
        );
        return Outcome::BadInput;
    }
    if args.list {
        list(&tests, args.json);
        return Outcome::Done;
    }
    // What tests keep there for a while goes with them, however they end.
    let temporary = match temp_files::folder("bulkhead-test-") {
        Ok(folder) => folder,
        Err(why) => {
            let what = "cannot make a folder for what is temporary";
            return Failure::environment(what, why, "set TMPDIR to a folder with room").report();
        }
    };
    // It cannot have been named before.
    let _ = tempfile::env::override_temp_dir(temporary.value.path());
    let context = Context::new(root, &tests);
    let mut show = Show::new(tests.len(), args.json);
    let done = testing::run(&tests, &context, args.jobs, &mut |told| show.tell(&told));
    show.finish(&done)
}

fn list(tests: &[Test], json: bool) {
    if json {
        let tests = tests.iter().map(|test| Listed {
            name: &test.name,
            claim: &test.claim,
            on_request: test.on_request.is_some(),
            why: test.on_request.as_deref(),
        });
        let tests = tests.collect();
        println!("{}", json!(List { tests }));
        return;
    }
    for test in tests {
        let mark = test.on_request.as_ref();
        let mark = mark.map_or_else(String::new, |why| format!(" (on request: {why})"));
        println!("{}{mark}\n    {}", test.name, test.claim);
    }
    println!("{} tests", tests.len());
}

/// Output of `--list --json`.
#[derive(Serialize)]
struct List<'a> {
    tests: Vec<Listed<'a>>,
}

#[derive(Serialize)]
struct Listed<'a> {
    name: &'a str,
    claim: &'a str,
    on_request: bool,
    /// Reason that it runs on request only.
    why: Option<&'a str>,
}

/// Output of `--json` at the end.
#[derive(Serialize)]
struct Document<'a> {
    passed: usize,
    failed: usize,
    tests: Vec<Ended<'a>>,
}

#[derive(Serialize)]
struct Ended<'a> {
    name: &'a str,
    claim: &'a str,
    passed: bool,
    /// Note about a test that passed.
    note: Option<&'a str>,
    /// Findings of a test that failed.
    wrong: Option<&'a [String]>,
    seconds: f32,
}

/// Shows progress: a moving line on a terminal, a line for each test that has ended everywhere.
struct Show {
    bar: Option<ProgressBar>,
    running: Vec<String>,
    json: bool,
    colour: bool,
}

impl Show {
    fn new(tests: usize, json: bool) -> Self {
        let terminal = io::stderr().is_terminal() && io::stdout().is_terminal();
        let bar = terminal.then(|| {
            let style =
                ProgressStyle::with_template("  {spinner} {pos}/{len} {elapsed} {wide_msg}");
            let bar = ProgressBar::new(tests as u64);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self {
            bar,
            running: Vec::new(),
            json,
            colour: terminal && std::env::var_os("NO_COLOR").is_none(),
        }
    }

    fn say(&self, text: &str) {
        let print = || {
            // A reader that went away does not make tests fail.
            let _ = match self.json {
                true => writeln!(io::stderr(), "{text}"),
                false => writeln!(io::stdout(), "{text}"),
            };
        };
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    fn tell(&mut self, told: &Told<'_, '_>) {
        match told {
            Told::Began(test) => self.running.push(test.name.clone()),
            Told::Ended(done) => {
                self.running.retain(|name| *name != done.test.name);
                self.say(&self.line(done));
                if let Some(bar) = &self.bar {
                    bar.inc(1);
                }
            }
        }
        if let Some(bar) = &self.bar {
            bar.set_message(self.running.join(", "));
        }
    }

    fn line(&self, done: &Done<'_>) -> String {
        let paint = |code: &str, text: &str| match self.colour {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        };
        let seconds = done.took.as_secs_f32();
        match &done.result {
            Ok(note) => {
                let note = if note.is_empty() {
                    String::new()
                } else {
                    format!(": {note}")
                };
                format!(
                    "{} {}{note} ({seconds:.1} s)",
                    paint("32", "ok  "),
                    done.test.name
                )
            }
            Err(wrong) => {
                let mut text = format!(
                    "{} {} ({seconds:.1} s)",
                    paint("31", "FAIL"),
                    done.test.name
                );
                text.push_str(&format!("\n     claim: {}", done.test.claim));
                for line in wrong.iter().flat_map(|entry| entry.lines()) {
                    text.push_str(&format!("\n     {line}"));
                }
                text
            }
        }
    }

    fn finish(self, done: &[Done<'_>]) -> Outcome {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let failed: Vec<_> = done.iter().filter(|done| done.result.is_err()).collect();
        let passed = done.len() - failed.len();
        if self.json {
            let tests = done.iter().map(|done| Ended {
                name: &done.test.name,
                claim: &done.test.claim,
                passed: done.result.is_ok(),
                note: done.result.as_deref().ok(),
                wrong: done.result.as_ref().err().map(Vec::as_slice),
                seconds: done.took.as_secs_f32(),
            });
            let document = Document {
                passed,
                failed: failed.len(),
                tests: tests.collect(),
            };
            println!("{}", json!(document));
        } else {
            for done in &failed {
                println!("failed: {}", done.test.name);
            }
            println!("{passed} passed, {} failed", failed.len());
        }
        if failed.is_empty() {
            Outcome::Done
        } else {
            Outcome::Failed
        }
    }
}
