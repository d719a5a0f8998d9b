//! Trying mutants: the fate of each.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use bulkhead_model::failure::Failure;
use bulkhead_runner::Effort;
use serde::Serialize;

use super::copy::{Built, Copy, Originals};
use super::mutant::Mutant;
use super::sources::Source;
use crate::testing::{Context, Ending, RunCost, Test, Trial};

/// Fate of a mutant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "fate")]
pub enum Fate {
    /// It does not compile.
    Unviable,
    /// Each image of EL2 that its tests boot is the same to the byte.
    Equal,
    /// A test failed.
    Killed {
        /// Name of the test.
        by: String,
        /// Finding of the test that says most.
        how: String,
    },
    /// All tests passed.
    Survived,
    /// Nothing is known: the guard time was over, or a test could not be run.
    Undecided {
        /// Description of what happened.
        why: String,
    },
}

/// A mutant and the tests that are tried on it, in their order.
#[derive(Clone, Debug)]
pub struct Work {
    /// Mutant.
    pub mutant: Mutant,
    /// Names of tests.
    pub tests: Vec<String>,
}

/// Returns the bound of a run that costs the unchanged EL2 this much: several times that, and some for short ones.
fn bound(cost: RunCost) -> RunCost {
    RunCost {
        cpu_time: cost.cpu_time * 4 + Duration::from_secs(5),
        still: cost.still * 4 + 80,
    }
}

/// No bound.
const ENDLESS: RunCost = RunCost {
    cpu_time: Duration::MAX,
    still: u32::MAX,
};

/// Tries mutants.
pub struct Bench<'a> {
    root: PathBuf,
    tests: BTreeMap<&'a str, &'a Test>,
    sources: &'a [Source],
    originals: Originals,
    /// Cost of a run of each test with the unchanged EL2.
    takes: BTreeMap<String, RunCost>,
}

impl std::fmt::Debug for Bench<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bench").finish_non_exhaustive()
    }
}

impl<'a> Bench<'a> {
    /// Returns a bench for the checkout at `root`, with the tests that there are.
    pub fn new(root: PathBuf, tests: &'a [Test], sources: &'a [Source]) -> Self {
        Self {
            root,
            tests: tests
                .iter()
                .map(|test| (test.name.as_str(), test))
                .collect(),
            sources,
            originals: Originals::default(),
            takes: BTreeMap::new(),
        }
    }

    /// Tries all mutants, `workers` at a time, and tells each one's fate as soon as it is known.
    ///
    /// # Errors
    ///
    /// A test does not pass with EL2 as it is, or a copy cannot be made.
    pub fn run(
        &mut self,
        work: &[Work],
        workers: usize,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<Vec<Fate>, Failure> {
        let mut copies = vec![Copy::of(&self.root)?];
        for name in work.iter().flat_map(|work| &work.tests) {
            if !self.takes.contains_key(name) {
                let takes = self.unchanged(&copies[0], name)?;
                tell(Told::Unchanged(name, takes));
                self.takes.insert(name.clone(), takes);
            }
        }
        while copies.len() < workers.min(work.len()) {
            copies.push(Copy::of(&self.root)?);
        }
        let mut fates = vec![Fate::Survived; work.len()];
        let next = AtomicUsize::new(0);
        let (send, receive) = mpsc::channel();
        let mut trouble = None;
        thread::scope(|scope| {
            for copy in &copies {
                let (send, next, bench) = (send.clone(), &next, &*self);
                scope.spawn(move || {
                    while let Some((index, one)) = take(next, work) {
                        let fate = bench.try_one(copy, one);
                        let failed = fate.is_err();
                        // The receiver outlives the scope.
                        let _ = send.send((index, fate));
                        if failed {
                            return;
                        }
                    }
                });
            }
            drop(send);
            for (index, fate) in receive {
                match fate {
                    Ok(fate) => {
                        tell(Told::Tried(&work[index].mutant, &fate));
                        fates[index] = fate;
                    }
                    Err(failure) => trouble = Some(failure),
                }
            }
        });
        trouble.map_or(Ok(fates), Err)
    }

    fn context(&self, trial: Trial) -> Context {
        let mut context = Context::new(self.root.clone(), &[]);
        context.trial = Some(trial);
        context
    }

    /// Runs a test on EL2 as it is; returns its cost.
    fn unchanged(&self, copy: &Copy, name: &str) -> Result<RunCost, Failure> {
        let Some(test) = self.tests.get(name) else {
            let advice = "`./bulkhead test --list` names all; system/, matrix/ and figures/operations/ can be used";
            let what = format!("no test of a system is called `{name}`");
            return Err(Failure::input(what, "", advice));
        };
        let context = self.context(Trial {
            el2: Box::new(copy.original(&self.originals)),
            effort: Effort::Everything,
            folder: copy.systems(),
            most: ENDLESS,
            runs: Mutex::default(),
        });
        (test.job)(&context).map_err(|wrong| {
            let what = format!("`{name}` does not pass with EL2 as it is");
            Failure::failed(what, wrong.join("\n"), "mend that first")
        })?;
        let runs = context.trial.map(|trial| trial.runs.into_inner());
        let runs = runs.map(|runs| runs.unwrap_or_else(PoisonError::into_inner));
        let last = runs.and_then(|runs| runs.last().copied());
        last.map(|(_, cost)| cost)
            .ok_or_else(|| Failure::failed(format!("`{name}` has run no system"), "", ""))
    }

    fn try_one(&self, copy: &Copy, work: &Work) -> Result<Fate, Failure> {
        let Work { mutant, tests } = work;
        let source = self.sources.iter().find(|one| one.file == mutant.file);
        let text = source.map_or("", |source| &source.text);
        copy.apply(mutant, text)?;
        let fate = self.fate(copy, tests);
        copy.put(&mutant.file, text)?;
        Ok(fate)
    }

    fn fate(&self, copy: &Copy, tests: &[String]) -> Fate {
        let (mut changed, mut unknown) = (false, None);
        for name in tests {
            let (Some(test), Some(takes)) = (self.tests.get(name.as_str()), self.takes.get(name))
            else {
                continue;
            };
            let built = Arc::new(Mutex::new(Built::NotYet));
            let context = self.context(Trial {
                el2: Box::new(copy.changed(&self.originals, &built)),
                effort: Effort::WhatIsThere,
                folder: copy.systems(),
                most: bound(*takes),
                runs: Mutex::default(),
            });
            let result = (test.job)(&context);
            let built = built.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match built {
                Built::Refused(_) => return Fate::Unviable,
                Built::Same => continue,
                Built::NotYet | Built::Changed => changed = true,
            }
            let Err(wrong) = result else {
                continue;
            };
            let first = wrong.first().cloned().unwrap_or_default();
            let runs = context.trial.map(|trial| trial.runs.into_inner());
            let runs = runs.map(|runs| runs.unwrap_or_else(PoisonError::into_inner));
            match runs.and_then(|runs| runs.last().copied()) {
                // A host that is busy, or lacks something, kills nobody.
                None => unknown = Some(format!("{name}: {first}")),
                Some((Ending::Guard, _)) => unknown = Some(format!("{name}: {first}")),
                Some(_) => {
                    return Fate::Killed {
                        by: name.clone(),
                        how: reason(&wrong),
                    };
                }
            }
        }
        match unknown {
            Some(why) => Fate::Undecided { why },
            None if changed => Fate::Survived,
            None => Fate::Equal,
        }
    }
}

/// Returns the line that says most of why a test failed.
fn reason(wrong: &[String]) -> String {
    let telling = wrong.iter().find(|line| {
        line.contains("FAIL ") || line.contains("sanitizer") || line.contains("CPU time")
    });
    let line = telling.or(wrong.first()).map_or("", String::as_str);
    let line = line.lines().next().unwrap_or_default();
    line.chars().take(160).collect()
}

/// Reports of [`Bench::run`] while it works.
#[derive(Debug)]
pub enum Told<'a> {
    /// A test has run on EL2 as it is.
    Unchanged(&'a str, RunCost),
    /// A mutant was tried, and this is its fate.
    Tried(&'a Mutant, &'a Fate),
}

fn take<'a>(next: &AtomicUsize, work: &'a [Work]) -> Option<(usize, &'a Work)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    work.get(index).map(|work| (index, work))
}
