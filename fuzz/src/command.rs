//! The command line of the programs, one for each target; called by `bulkhead fuzz`, which builds them with sanitizers.
//!
//! The last line on stdout tells how it ended. Exit status: 0 nothing found, 1 found, 2 wrong arguments,
//! 3 the folder cannot be used.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::Target;
use crate::engine::{self, Until};

const USAGE: &str = "usage: fuzz-TARGET --folder FOLDER [--seed N] (--runs N | --minutes N)
       fuzz-TARGET --replay FILE";

struct Arguments {
    folder: PathBuf,
    seed: u64,
    until: Until,
    replay: Option<PathBuf>,
}

fn arguments(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut arguments = Arguments {
        folder: PathBuf::from("."),
        seed: 1,
        until: Until::Runs(10_000),
        replay: None,
    };
    while let Some(option) = words.next() {
        let value = words.next()?;
        match option.as_str() {
            "--folder" => arguments.folder = value.into(),
            "--seed" => arguments.seed = value.parse().ok()?,
            "--runs" => arguments.until = Until::Runs(value.parse().ok()?),
            "--minutes" => arguments.until = Until::Minutes(value.parse().ok()?),
            "--replay" => arguments.replay = Some(value.into()),
            _ => return None,
        }
    }
    Some(arguments)
}

/// Runs a program that searches this target and has no code of another.
pub fn main(target: &Target) -> ExitCode {
    let Some(arguments) = arguments(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let ended = match &arguments.replay {
        Some(file) => replay(target, file),
        None => search(target, &arguments),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("{}: {error}", arguments.folder.display());
        ExitCode::from(3)
    })
}

fn replay(target: &Target, file: &Path) -> std::io::Result<ExitCode> {
    Ok(match engine::replay(target, file)? {
        Ok(()) => {
            println!("{}: nothing breaks", target.name);
            ExitCode::SUCCESS
        }
        Err(words) => {
            println!("{}: {words}", target.name);
            ExitCode::from(1)
        }
    })
}

fn search(target: &Target, arguments: &Arguments) -> std::io::Result<ExitCode> {
    let Arguments {
        seed,
        until,
        folder,
        ..
    } = arguments;
    let done = engine::search(target, *seed, *until, folder)?;
    if let Some((file, words)) = done.broken {
        println!("{words}");
        println!("broken after {} runs by {}", done.runs, file.display());
        return Ok(ExitCode::from(1));
    }
    println!(
        "{} runs, {} inputs kept, {} of {} counters reached",
        done.runs, done.kept, done.reached, done.counters
    );
    Ok(ExitCode::SUCCESS)
}
