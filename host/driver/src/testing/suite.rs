//! Tests and how a list of them is run.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bulkhead_runner::profile::Profile;
use bulkhead_runner::run::System;

use super::builds::Builds;
use super::trial::Trial;

/// Stage in which a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// One after the other, first: compilers use all CPUs by themselves, and later tests need what
    /// these build.
    Build,
    /// Several at a time, also those that build what keeps one CPU busy.
    Parallel,
    /// One after the other, last: they judge what the others have left.
    Last,
}

/// Context that tests share.
#[derive(Debug)]
pub struct Context {
    /// The repository.
    pub root: PathBuf,
    /// Names of the tests of this run: those that share what they build need not build for the others.
    pub chosen: Vec<String>,
    /// Folder for the logs of tests.
    pub logs: PathBuf,
    /// Systems that were built already.
    pub builds: Builds,
    /// Cost of EL2 in the system tests, by the name of the test.
    pub profiles: Mutex<Vec<(String, Profile)>>,
    /// Another EL2 than that of the checkout, on which they run.
    pub trial: Option<Trial>,
}

impl Context {
    /// A context for the repository at `root`, in which `tests` run.
    pub fn new(root: PathBuf, tests: &[Test]) -> Self {
        Self {
            chosen: tests.iter().map(|test| test.name.clone()).collect(),
            logs: root.join("out/test"),
            builds: Builds::default(),
            profiles: Mutex::default(),
            trial: None,
            root,
        }
    }

    /// The built system of a description.
    ///
    /// # Errors
    ///
    /// It cannot be built.
    pub fn system(&self, description: &Path) -> Result<System, String> {
        match &self.trial {
            Some(trial) => trial.system(description),
            None => self.builds.get(description),
        }
    }
}

/// Body of a test: returns a note about what it saw, or what was wrong, one entry for each finding.
pub type Job = Box<dyn Fn(&Context) -> Result<String, Vec<String>> + Send + Sync>;

/// A test.
pub struct Test {
    /// Name, by which a filter finds it.
    pub name: String,
    /// Claim that it proves.
    pub claim: String,
    /// Stage in which it runs.
    pub stage: Stage,
    /// Whether it is among the first of its stage: it takes minutes, for which others would have to be waited with one CPU at the end.
    pub is_long: bool,
    /// Reason that it runs only when it is asked for, by `--all` or by a part of its name; `None` if it runs each time.
    pub on_request: Option<String>,
    /// Body of the test.
    pub job: Job,
}

impl fmt::Debug for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Test")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Test {
    /// A test of the first stage.
    pub fn build(name: impl Into<String>, claim: impl Into<String>, job: Job) -> Self {
        Self {
            name: name.into(),
            claim: claim.into(),
            stage: Stage::Build,
            is_long: false,
            on_request: None,
            job,
        }
    }

    /// The test, to begin early in its stage.
    pub fn long(self) -> Self {
        Self {
            is_long: true,
            ..self
        }
    }

    /// The test, to run on request only.
    pub fn on_request(self, why: impl Into<String>) -> Self {
        Self {
            on_request: Some(why.into()),
            ..self
        }
    }

    /// A test that runs when all others have.
    pub fn last(name: impl Into<String>, claim: impl Into<String>, job: Job) -> Self {
        Self {
            stage: Stage::Last,
            ..Self::build(name, claim, job)
        }
    }

    /// A test that may run beside others.
    pub fn parallel(name: impl Into<String>, claim: impl Into<String>, job: Job) -> Self {
        Self {
            stage: Stage::Parallel,
            ..Self::build(name, claim, job)
        }
    }
}

/// A test that has run.
#[derive(Debug)]
pub struct Done<'a> {
    /// The test.
    pub test: &'a Test,
    /// Result of its job.
    pub result: Result<String, Vec<String>>,
    /// Time that it took; for the reader, nothing depends on it.
    pub took: Duration,
}

/// Reports of [`run`] while it works.
#[derive(Debug)]
pub enum Told<'t, 'a> {
    /// A test has begun.
    Began(&'a Test),
    /// A test has ended.
    Ended(&'t Done<'a>),
}

/// Runs all tests, the first stage one by one and the others `workers` at a time. A test that panics
/// has failed.
pub fn run<'a>(
    tests: &'a [Test],
    context: &Context,
    workers: usize,
    tell: &mut dyn FnMut(Told<'_, 'a>),
) -> Vec<Done<'a>> {
    let mut all = Vec::with_capacity(tests.len());
    let stages = [
        (Stage::Build, 1),
        (Stage::Parallel, workers.max(1)),
        (Stage::Last, 1),
    ];
    for (stage, workers) in stages {
        let mut tests: Vec<_> = tests.iter().filter(|test| test.stage == stage).collect();
        tests.sort_by_key(|test| !test.is_long);
        let next = AtomicUsize::new(0);
        let (send, receive) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..workers.min(tests.len()) {
                let (send, tests, next) = (send.clone(), &tests, &next);
                scope.spawn(move || {
                    while let Some(test) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
                        // The receiver outlives the scope, so nothing is lost.
                        let _ = send.send(Err(*test));
                        let _ = send.send(Ok(run_one(test, context)));
                    }
                });
            }
            drop(send);
            for message in receive {
                match message {
                    Err(test) => tell(Told::Began(test)),
                    Ok(done) => {
                        tell(Told::Ended(&done));
                        all.push(done);
                    }
                }
            }
        });
    }
    all
}

fn run_one<'a>(test: &'a Test, context: &Context) -> Done<'a> {
    let start = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| (test.job)(context)));
    let result = result.unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(vec![format!(
            "the test itself panicked: {}",
            words.unwrap_or("without a word")
        )])
    });
    Done {
        test,
        result,
        took: start.elapsed(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_come_first_and_every_end_is_told() {
        let order = std::sync::Arc::new(Mutex::new(Vec::new()));
        let note = |text: &'static str, result: Result<String, Vec<String>>| -> Job {
            let order = std::sync::Arc::clone(&order);
            Box::new(move |_| {
                order.lock().unwrap().push(text);
                result.clone()
            })
        };
        let tests = [
            Test::last("last", "c", note("last", Ok(String::new()))),
            Test::build("zero", "c", note("zero", Ok(String::new()))).long(),
            Test::parallel("late", "c", note("late", Ok("fine".into()))),
            Test::build("two", "c", note("two", Err(vec!["bad".into()]))),
            Test::build("one", "c", note("one", Ok(String::new()))).long(),
            Test::parallel("panics", "c", Box::new(|_| panic!("ouch"))),
        ];
        let mut told = 0;
        let context = Context::new(PathBuf::from("/nonexistent"), &tests);
        let done = run(&tests, &context, 2, &mut |_| told += 1);
        assert_eq!(
            *order.lock().unwrap(),
            ["zero", "one", "two", "late", "last"]
        );
        assert_eq!(told, 12);
        let result = |name| {
            &done
                .iter()
                .find(|done| done.test.name == name)
                .unwrap()
                .result
        };
        assert_eq!(*result("late"), Ok("fine".to_owned()));
        assert_eq!(*result("two"), Err(vec!["bad".to_owned()]));
        assert_eq!(
            *result("panics"),
            Err(vec!["the test itself panicked: ouch".to_owned()])
        );
    }
}
