//! Looks for inputs that break a target: variants of what reached new code, until a number of runs or
//! minutes is over. The same seed gives the same runs.

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
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::{Target, sys};

/// Longest input.
const LONGEST: usize = 16 * 1024;

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After so many runs.
    Runs(u64),
    /// After so many minutes.
    Minutes(u64),
}

/// What a search has done.
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

/// Ends the process when one input is tried for too long; `current` has it.
fn watch(runs: &'static AtomicU64) {
    std::thread::spawn(move || {
        let mut before = (0, Instant::now());
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let now = runs.load(Ordering::Relaxed);
            if now != before.0 {
                before = (now, Instant::now());
            } else if before.1.elapsed() > Duration::from_secs(HANGS) {
                println!("an input has been tried for {HANGS} seconds");
                std::process::exit(98);
            }
        }
    });
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

/// Counters that inputs have reached, by how often: once, twice, up to 3, 7, 15, 31, 127, more.
struct Seen {
    buckets: Vec<u8>,
    reached: usize,
}

impl Seen {
    /// Takes the counters of a run; `true` if one of them is new.
    fn take(&mut self) -> bool {
        let mut news = false;
        let Self { buckets, reached } = self;
        sys::take_counters(|number, count| {
            let bucket = 1_u8 << (8 - count.leading_zeros()).min(7);
            if let Some(seen) = buckets.get_mut(number)
                && *seen & bucket == 0
            {
                *reached += usize::from(*seen == 0);
                *seen |= bucket;
                news = true;
            }
        });
        news
    }
}

/// Searches. `folder` gets `current`, the input that is being tried, so that one that kills the process
/// is not lost, `corpus/` with what was worth keeping, and `crash-*`.
///
/// # Errors
/// The folder cannot be written.
pub fn search(target: &Target, seed: u64, until: Until, folder: &Path) -> io::Result<Done> {
    let corpus_folder = folder.join("corpus");
    fs::create_dir_all(&corpus_folder)?;
    let current = fs::File::create(folder.join("current"))?;
    static RUNS: AtomicU64 = AtomicU64::new(0);
    listen();
    watch(&RUNS);
    let counters = sys::counters();
    let mut seen = Seen {
        buckets: vec![0; counters],
        reached: 0,
    };
    // What ran before counts for nobody.
    seen.take();
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
        note(&current, &input)?;
        runs += 1;
        RUNS.fetch_add(1, Ordering::Relaxed);
        if let Err(words) = attempt(target, &input) {
            let (input, words) = shrink::shrink(target, input, words);
            let broken = Some((keep(folder, "crash-", &input)?, words));
            let (kept, reached) = (corpus.len(), seen.reached);
            return Ok(Done {
                runs,
                kept,
                counters,
                reached,
                broken,
            });
        }
        // Without counters nothing is ever new, and the seeds are the corpus.
        let news = seen.take();
        if news && !is_seed {
            keep(&corpus_folder, "", &input)?;
        }
        if news || is_seed {
            corpus.push(input);
        }
    }
    let (kept, reached) = (corpus.len(), seen.reached);
    Ok(Done {
        runs,
        kept,
        counters,
        reached,
        broken: None,
    })
}

/// Writes what is about to be tried: its length, then the bytes.
fn note(file: &fs::File, input: &[u8]) -> io::Result<()> {
    let mut bytes = (input.len() as u64).to_le_bytes().to_vec();
    bytes.extend(input);
    file.write_all_at(&bytes, 0)
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
