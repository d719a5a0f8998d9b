//! A bounded search of each fuzz target: the same inputs every time.

use std::sync::{Arc, OnceLock};

use super::suite::{Context, Job, Test};
use crate::fuzzing::{self, Fuzzer, Package, TARGETS, Target, Until};

/// The fuzzer of a package, built once for all tests, or why there is none.
type Shared = Arc<OnceLock<Result<Fuzzer, String>>>;

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let (core, host) = (Shared::default(), Shared::default());
    TARGETS
        .iter()
        .map(|target| {
            let shared = Arc::clone(match target.of {
                Package::Core => &core,
                Package::Host => &host,
            });
            let job: Job = Box::new(move |context| search(context, &shared, target));
            Test::parallel(format!("fuzz/{}", target.name), target.claim, job)
        })
        .collect()
}

fn search(context: &Context, shared: &Shared, target: &Target) -> Result<String, Vec<String>> {
    let fuzzer =
        shared.get_or_init(|| fuzzing::build(target.of).map_err(|failure| failure.to_string()));
    let fuzzer = fuzzer.as_ref().map_err(|why| vec![why.clone()])?;
    let folder = context.logs.join("fuzz").join(target.name);
    // What an earlier run kept would make this one try other inputs. If it cannot go, the search says so.
    let _ = std::fs::remove_dir_all(&folder);
    match fuzzing::search(fuzzer, target.name, 1, Until::Runs(target.runs), &folder) {
        Ok(Ok(figures)) => Ok(figures),
        Ok(Err(found)) => Err(vec![
            found.words,
            format!(
                "./bulkhead fuzz {} --replay {}",
                target.name,
                found.file.display()
            ),
        ]),
        Err(failure) => Err(vec![failure.to_string()]),
    }
}
