//! `bulkhead fuzz`: looks for inputs that break what a guest, a firmware or a file can reach.

use std::path::PathBuf;

use super::Outcome;
use crate::failure::Failure;
use crate::fuzzing::{self, TARGETS, Target, Until};
use crate::machine;

/// Look for inputs that break what others can reach, with AddressSanitizer
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead fuzz                           # every target, as many inputs as `bulkhead test` tries
  bulkhead fuzz --minutes 60              # every target, an hour each
  bulkhead fuzz plan --runs 1000000       # one target, so many inputs
  bulkhead fuzz plan --replay out/fuzz/plan/crash-0123456789abcdef
  bulkhead fuzz --list                    # what each target proves

What is worth keeping stays in out/fuzz/TARGET and the next search starts from it. Exit status: 0 nothing
found, 1 found, 2 there is no such target or file.")]
pub struct Args {
    /// Target; all if none is named
    target: Option<String>,
    /// Try so many inputs of each target
    #[arg(long, conflicts_with = "minutes", value_name = "N")]
    runs: Option<u64>,
    /// Search each target for so many minutes
    #[arg(long, value_name = "N")]
    minutes: Option<u64>,
    /// Where the random numbers start
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Try this input again
    #[arg(long, value_name = "FILE", requires = "target", conflicts_with_all = ["runs", "minutes"])]
    replay: Option<PathBuf>,
    /// Print the targets and what each proves, run nothing
    #[arg(long)]
    list: bool,
}

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
    let fuzzer = fuzzing::build()?;
    let mut outcome = Outcome::Done;
    for target in chosen {
        if let Some(file) = &args.replay {
            let (words, broken) = fuzzing::replay(&fuzzer, target.name, file)?;
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
        let folder = machine::checkout().join("out/fuzz").join(target.name);
        match fuzzing::search(&fuzzer, target.name, args.seed, until, &folder)? {
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
