//! `bulkhead fuzz`: looks for inputs that break what a guest, a firmware or a file can reach.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use bulkhead_cli::cmd::fuzz::Args;
use bulkhead_model::checkout;
use bulkhead_model::failure::{Failure, Outcome};

use crate::fuzzing::{self, TARGETS, Target, Until};

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    if args.list {
        for target in TARGETS {
            println!("{}\n    {}", target.name, target.claim);
        }
        return Outcome::Done;
    }
    act(&args).unwrap_or_else(Failure::report)
}

fn act(args: &Args) -> Result<Outcome, Failure> {
    let chosen: Vec<&Target> = TARGETS
        .iter()
        .filter(|target| {
            args.target
                .as_deref()
                .is_none_or(|name| name == target.name)
        })
        .collect();
    if chosen.is_empty() {
        let name = args.target.as_deref().unwrap_or_default();
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        return Err(Failure::input(
            format!("there is no target `{name}` to fuzz"),
            "",
            format!("the targets are {}", names.join(", ")),
        ));
    }
    let mut fuzzers = BTreeMap::new();
    let mut outcome = Outcome::Done;
    for target in chosen {
        let fuzzer = match fuzzers.entry(target.of) {
            Entry::Occupied(built) => built.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(fuzzing::build(target.of)?),
        };
        if let Some(file) = &args.replay {
            let (words, broken) = fuzzing::replay(fuzzer, target.name, file)?;
            print!("{words}");
            return Ok(if broken {
                Outcome::Failed
            } else {
                Outcome::Done
            });
        }
        let until = match (args.runs, args.minutes) {
            (Some(runs), _) => Until::Runs(runs),
            (None, Some(minutes)) => Until::Minutes(minutes),
            (None, None) => Until::Runs(target.runs),
        };
        let folder = checkout::root().join("out/fuzz").join(target.name);
        match fuzzing::search(fuzzer, target.name, args.seed, until, &folder)? {
            Ok(figures) => println!("{}: {figures}", target.name),
            Err(found) => {
                println!("{}: {}", target.name, found.words.trim_end());
                let file = found.file.display();
                println!(
                    "  try it again: ./bulkhead fuzz {} --replay {file}",
                    target.name
                );
                outcome = Outcome::Failed;
            }
        }
    }
    Ok(outcome)
}
