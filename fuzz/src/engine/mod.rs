//! Looks for inputs that break a target: variants of what reached new code, until a number of runs or
//! minutes is over. The same seed gives the same runs.

mod coverage;
mod input;
mod mutate;
mod random;
mod shrink;

pub use input::Input;
pub use random::Random;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::{Target, sys};
use coverage::Coverage;

/// Longest input.
const LONGEST: usize = 16 * 1024;

/// Limit of a search.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After so many runs.
    Runs(u64),
    /// After so many minutes.
    Minutes(u64),
}

/// Result of a search.
#[derive(Debug)]
pub struct Done {
    /// Inputs tried.
    pub runs: u64,
    /// Inputs kept because they reached something new.
    pub kept: usize,
    /// Counters that the code has; none without coverage.
    pub counters: usize,
    /// Counters that some input reached.
    pub reached: usize,
    /// The input that broke the target, as small as it became, and its words.
    pub broken: Option<(PathBuf, String)>,
}

/// Seconds after which an input that is still being tried counts as one that never ends. No input takes a
/// second; a loaded machine may.
const HANGS: u64 = 120;

/// Inputs that were begun.
static RUNS: AtomicU64 = AtomicU64::new(0);

/// Ends the process when one input is tried for too long; `current` has it. Once this returns, what the watch does each
/// second was counted.
fn watch() -> io::Result<()> {
    let (began, begins) = mpsc::channel();
    std::thread::spawn(move || {
        let mut before = (u64::MAX, Instant::now());
        // Before it tells of itself it has been through the loop in each way: what comes later is counted where it was.
        for look in 0_u64.. {
            let now = RUNS.load(Ordering::Relaxed);
            if now != before.0 {
                before = (now, Instant::now());
            }
            if before.1.elapsed() > Duration::from_secs(HANGS) {
                println!("an input has been tried for {HANGS} seconds");
                std::process::exit(98);
            }
            if look == 3 {
                // Who waits may have gone.
                let _ = began.send(());
            }
            let pause = 1 + 999 * u64::from(look > 4);
            std::thread::sleep(Duration::from_millis(pause));
        }
    });
    let ended = |_| io::Error::other("the watch for inputs that never end has ended itself");
    begins.recv().map_err(ended)
}

/// Words of the last panic.
static WORDS: Mutex<String> = Mutex::new(String::new());

/// Keeps panics quiet and their words for the report.
fn listen() {
    set_hook(Box::new(|info| {
        if let Ok(mut words) = WORDS.lock() {
            *words = info.to_string();
        }
    }));
}

/// Tries one input; the words of the panic if it breaks the target.
pub fn attempt(target: &Target, input: &[u8]) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| (target.run)(input))).map_err(|_| {
        WORDS
            .lock()
            .map_or_else(|_| String::new(), |words| words.clone())
    })
}

/// Searches. `folder` gets `current`, the input that is being tried, so that one that kills the process
/// is not lost, `corpus/` with what was worth keeping, and `crash-*`.
///
/// # Errors
/// The folder cannot be written.
pub fn search(target: &Target, seed: u64, until: Until, folder: &Path) -> io::Result<Done> {
    let corpus_folder = folder.join("corpus");
    fs::create_dir_all(&corpus_folder)?;
    let mut current = Current::new(folder)?;
    listen();
    let mut coverage = Coverage::new();
    // What the watch counts, whenever it likes, and what is counted around an input that reaches nothing, is the engine's
    // own. It would make inputs new that are not.
    sys::clear_counters();
    watch()?;
    coverage.ignore();
    for _ in 0..2 {
        sys::clear_counters();
        let _ = attempt(&NOTHING, &[]);
        coverage.ignore();
    }
    let mut random = Random::new(seed);
    let mut corpus: Vec<Vec<u8>> = Vec::new();
    let mut waiting = (target.seeds)();
    // What earlier searches kept; in an order that does not depend on the file system.
    let mut files: Vec<_> = fs::read_dir(&corpus_folder)?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    files.sort();
    for file in files {
        waiting.push(fs::read(file)?);
    }
    if waiting.is_empty() {
        waiting.push(Vec::new());
    }
    waiting.reverse();
    let begin = Instant::now();
    let mut runs = 0;
    loop {
        let over = match until {
            Until::Runs(most) => runs >= most,
            Until::Minutes(most) => begin.elapsed() >= Duration::from_secs(60 * most),
        };
        if over && (waiting.is_empty() || matches!(until, Until::Minutes(_))) {
            break;
        }
        let first = waiting.pop();
        let is_seed = first.is_some();
        let mut input =
            first.unwrap_or_else(|| mutate::variant(&mut random, &corpus, target.words));
        input.truncate(LONGEST);
        current.note(&input)?;
        runs += 1;
        RUNS.fetch_add(1, Ordering::Relaxed);
        // Making the variant was counted as well.
        sys::clear_counters();
        if let Err(words) = attempt(target, &input) {
            let (input, words) = shrink::shrink(target, input, words);
            let broken = Some((keep(folder, "crash-", &input)?, words));
            return Ok(Done {
                runs,
                kept: corpus.len(),
                counters: coverage.counters(),
                reached: coverage.reached(),
                broken,
            });
        }
        // Without counters nothing is ever new, and the seeds are the corpus.
        let news = coverage.take();
        if news && !is_seed {
            keep(&corpus_folder, "", &input)?;
        }
        if news || is_seed {
            corpus.push(input);
        }
    }
    Ok(Done {
        runs,
        kept: corpus.len(),
        counters: coverage.counters(),
        reached: coverage.reached(),
        broken: None,
    })
}

/// A target that no input reaches.
const NOTHING: Target = Target {
    name: "nothing",
    seeds: Vec::new,
    words: &[],
    run: |_| {},
};

/// The input that is being tried, in a file.
struct Current {
    file: fs::File,
    /// Bytes written last; the buffer is used again.
    bytes: Vec<u8>,
}

impl Current {
    fn new(folder: &Path) -> io::Result<Self> {
        let file = fs::File::create(folder.join("current"))?;
        let bytes = Vec::with_capacity(8 + LONGEST);
        Ok(Self { file, bytes })
    }

    /// Writes the input that is about to be tried: its length, then the bytes.
    fn note(&mut self, input: &[u8]) -> io::Result<()> {
        self.bytes.clear();
        self.bytes.extend((input.len() as u64).to_le_bytes());
        self.bytes.extend(input);
        self.file.write_all_at(&self.bytes, 0)
    }
}

/// The input that `current` tells of, if there is one.
pub fn noted(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    rest.get(..usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

/// Writes an input under a name that tells it from others.
fn keep(folder: &Path, prefix: &str, input: &[u8]) -> io::Result<PathBuf> {
    let path = folder.join(format!("{prefix}{:016x}", random::digest(input)));
    fs::File::create(&path)?.write_all(input)?;
    Ok(path)
}

/// Tries the input in a file; its words if it breaks the target.
///
/// # Errors
/// The file cannot be read.
pub fn replay(target: &Target, file: &Path) -> io::Result<Result<(), String>> {
    let input = fs::read(file)?;
    listen();
    Ok(attempt(target, &input))
}
