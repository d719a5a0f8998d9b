//! `bulkhead-fuzz`: searches one target; called by `bulkhead fuzz`, which builds it with sanitizers.
//!
//! The last line on stdout tells how it ended. Exit status: 0 nothing found, 1 found, 2 wrong arguments,
//! 3 the folder cannot be used.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bulkhead_fuzz::engine::{self, Until};
use bulkhead_fuzz::{Target, targets};

const USAGE: &str = "usage: bulkhead-fuzz list
       bulkhead-fuzz TARGET --folder FOLDER [--seed N] (--runs N | --minutes N)
       bulkhead-fuzz TARGET --replay FILE";

struct Arguments {
    target: &'static Target,
    folder: PathBuf,
    seed: u64,
    until: Until,
    replay: Option<PathBuf>,
}

fn arguments(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
    let name = words.next()?;
    let mut arguments = Arguments {
        target: targets::ALL.iter().find(|target| target.name == name)?,
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

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).peekable();
    if words.peek().is_some_and(|word| word == "list") {
        for target in targets::ALL {
            println!("{}", target.name);
        }
        return ExitCode::SUCCESS;
    }
    let Some(arguments) = arguments(words) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let ended = match &arguments.replay {
        Some(file) => replay(&arguments, file),
        None => search(&arguments),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("{}: {error}", arguments.folder.display());
        ExitCode::from(3)
    })
}

fn replay(arguments: &Arguments, file: &Path) -> std::io::Result<ExitCode> {
    Ok(match engine::replay(arguments.target, file)? {
        Ok(()) => {
            println!("{}: nothing breaks", arguments.target.name);
            ExitCode::SUCCESS
        }
        Err(words) => {
            println!("{}: {words}", arguments.target.name);
            ExitCode::from(1)
        }
    })
}

fn search(arguments: &Arguments) -> std::io::Result<ExitCode> {
    let Arguments {
        target,
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
