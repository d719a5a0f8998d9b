//! Fuzzing: builds a program for each target (`fuzz/`) with LLVM's coverage counters and AddressSanitizer, and lets it
//! search. What it finds stays as a file that can be replayed.

mod build;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use bulkhead_model::failure::Failure;

pub use build::{Fuzzer, Package, Sanitizer, build};

/// Options by which AddressSanitizer does less in a search, for twice to four times as many inputs: it leaves out who
/// allocated what (a replay says it), fresh memory full of a pattern, and frames that outlive their functions; and it
/// keeps freed memory for as long as an input or a few take.
const QUICK: &str = ":malloc_context_size=0:max_malloc_fill_size=0:detect_stack_use_after_return=0:\
                     quarantine_size_mb=4:thread_local_quarantine_size_kb=64";

/// A target, by the name that `fuzz/` knows it by.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name.
    pub name: &'static str,
    /// Property that holds for every input, as a sentence.
    pub claim: &'static str,
    /// Inputs that `bulkhead test` tries.
    pub runs: u64,
    /// Package whose code it tests.
    pub of: Package,
}

/// Holds the names of a package's targets against [`TARGETS`]: for its tests.
///
/// # Panics
///
/// They differ.
pub fn assert_known<'a>(package: &str, there: impl Iterator<Item = &'a str>) {
    let known = TARGETS.iter().filter(|target| target.of.name() == package);
    let known: Vec<_> = known.map(|target| target.name).collect();
    assert_eq!(known, there.collect::<Vec<_>>());
}

/// All targets; a test in `fuzz/` holds them against those that there are.
pub const TARGETS: &[Target] = &[
    Target {
        name: "plan",
        claim: "Whatever bytes a plan has, it is refused, or no memory of one VM is another's and its \
                tables take exactly the pages that it says.",
        runs: 60_000,
        of: Package::Host,
    },
    Target {
        name: "boot-tree",
        claim: "Whatever bytes lie where a device tree should, reading them ends within their bounds.",
        runs: 60_000,
        of: Package::Host,
    },
    Target {
        name: "description",
        claim: "Every description is planned, or refused with a finding: the tool neither panics nor makes \
                a plan that its own proof rejects.",
        runs: 3_000,
        of: Package::Host,
    },
    Target {
        name: "survey",
        claim: "Whatever bytes a file has that somebody imports as a board, they are shown or refused in one \
                line.",
        runs: 2_000,
        of: Package::Host,
    },
    Target {
        name: "control",
        claim: "Whatever a manager asks for and whatever becomes of the board meanwhile, each request is answered once, \
                and nothing is done, copied or asked but by a right of the plan, and by a request without a wrong field.",
        runs: 100_000,
        of: Package::Host,
    },
    Target {
        name: "exits",
        claim: "Every syndrome is decoded to an access that exists or refused, and a fault that is handed \
                to the guest enters its vector with everything masked.",
        runs: 100_000,
        of: Package::Core,
    },
    Target {
        name: "registers",
        claim: "Every encoding of a system register has an answer, and no field of an ID register that is \
                counted from zero shows more than the board has.",
        runs: 100_000,
        of: Package::Core,
    },
    Target {
        name: "calls",
        claim: "Every call by HVC or SMC is answered, what no standard offers with \"not supported\", and a \
                VM's vCPUs are on and off as its calls say.",
        runs: 60_000,
        of: Package::Core,
    },
    Target {
        name: "clocks",
        claim: "However a guest programs its clock, its watchdog and its physical timer, a line rises at \
                its deadline and neither earlier nor later.",
        runs: 60_000,
        of: Package::Core,
    },
    Target {
        name: "uart",
        claim: "Whatever a guest reads and writes in the frame of its UART, bytes come out in order, as \
                many as were said to fit, and the line follows mask and state.",
        runs: 20_000,
        of: Package::Core,
    },
    Target {
        name: "console",
        claim: "Whatever guests print and whatever is typed, the console emits what each guest said, all \
                of it and in order, and the input has a VM that exists.",
        runs: 20_000,
        of: Package::Core,
    },
    Target {
        name: "stage2",
        claim: "For any regions the tables take as many pages as the planner counts, and a walk finds \
                each page where it was mapped and nothing beside it.",
        runs: 10_000,
        of: Package::Core,
    },
    Target {
        name: "vgic",
        claim: "Whatever vCPUs, devices and other pCPUs do to interrupts, the vGIC shows and gives what the \
                model of the GIC does, and for a guest that keeps to no rule it breaks none of the hardware's.",
        runs: 100_000,
        of: Package::Core,
    },
    Target {
        name: "virtio",
        claim: "Whatever a driver and a backend write, EL2 touches nothing but what is theirs, comes to rest, \
                and after a reset the device works.",
        runs: 200_000,
        of: Package::Core,
    },
    Target {
        name: "channel",
        claim: "Whatever the other end of a channel writes, a call moves this end by one message, or to where it is told; \
                an end that sleeps has nothing to do; and when the other behaves again, messages come.",
        runs: 200_000,
        of: Package::Core,
    },
];

/// Bound at which a search stops.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After so many inputs: the same ones every time.
    Runs(u64),
    /// After so many minutes.
    Minutes(u64),
}

/// Something that breaks a target.
#[derive(Debug)]
pub struct Found {
    /// Output of the search.
    pub words: String,
    /// The input.
    pub file: PathBuf,
}

/// Searches a target; returns its figures, or what broke it. Inputs worth keeping are taken from `folder` and left
/// there.
///
/// # Errors
/// The search cannot be run.
pub fn search(
    fuzzer: &Fuzzer,
    target: &str,
    seed: u64,
    until: Until,
    folder: &Path,
) -> Result<Result<String, Found>, Failure> {
    let (option, number) = match until {
        Until::Runs(runs) => ("--runs", runs),
        Until::Minutes(minutes) => ("--minutes", minutes),
    };
    fs::create_dir_all(folder).map_err(|error| unusable(folder, error))?;
    let mut command = fuzzer.command(target, QUICK);
    command.arg("--folder").arg(folder);
    command.args(["--seed", &seed.to_string(), option, &number.to_string()]);
    let (status, words) = run(&mut command)?;
    match status.code() {
        Some(0) => Ok(Ok(words.trim().to_owned())),
        Some(2 | 3) => Err(Failure::failed(
            format!("`{target}` cannot be searched"),
            words,
            "",
        )),
        Some(1) if let Some(file) = named(&words) => Ok(Err(Found { words, file })),
        // A sanitizer, a signal or the watch has ended it: the input is the one that it noted last.
        _ => {
            let file = keep_current(folder).map_err(|error| unusable(folder, error))?;
            let words = format!("{words}\nthe search ended with {status}");
            Ok(Err(Found { words, file }))
        }
    }
}

/// Tries one input again; returns what the target says, and whether it breaks.
///
/// # Errors
/// The target cannot be run.
pub fn replay(fuzzer: &Fuzzer, target: &str, file: &Path) -> Result<(String, bool), Failure> {
    let mut command = fuzzer.command(target, "");
    command.arg("--replay").arg(file);
    let (status, words) = run(&mut command)?;
    match status.code() {
        Some(2 | 3) => Err(Failure::input(
            format!("cannot replay {}", file.display()),
            words,
            "give a file that `bulkhead fuzz` has kept",
        )),
        _ => Ok((words, !status.success())),
    }
}

/// The file that the last line names.
fn named(words: &str) -> Option<PathBuf> {
    let (_, file) = words.trim_end().lines().last()?.split_once(" runs by ")?;
    Some(PathBuf::from(file))
}

fn keep_current(folder: &Path) -> std::io::Result<PathBuf> {
    let noted = fs::read(folder.join("current"))?;
    let (length, rest) = noted.split_at_checked(8).unwrap_or((&[], &[]));
    let length = length.try_into().map_or(0, u64::from_le_bytes);
    let input = rest.get(..usize::try_from(length).unwrap_or(usize::MAX));
    let file = folder.join("crash-current");
    fs::write(&file, input.unwrap_or(rest))?;
    Ok(file)
}

fn run(command: &mut Command) -> Result<(ExitStatus, String), Failure> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| {
        Failure::environment(
            "cannot run the fuzzer",
            error,
            "build it again: remove target/",
        )
    })?;
    let mut words = String::from_utf8_lossy(&output.stdout).into_owned();
    words.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok((output.status, words))
}

fn unusable(folder: &Path, error: std::io::Error) -> Failure {
    let what = format!("cannot keep inputs in {}", folder.display());
    Failure::environment(what, error, "make it writable")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_input_is_read_from_the_last_line() {
        let words = "panicked\nbroken after 12 runs by /a/crash-1\n";
        assert_eq!(named(words), Some(PathBuf::from("/a/crash-1")));
        assert_eq!(named("12 runs, 3 inputs kept"), None);
    }

    #[test]
    fn an_input_that_killed_the_search_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut noted = 3_u64.to_le_bytes().to_vec();
        noted.extend(b"abcdef");
        fs::write(folder.path().join("current"), noted).unwrap();
        let file = keep_current(folder.path()).unwrap();
        assert_eq!(fs::read(file).unwrap(), b"abc");
    }
}
