//! The sources that mutants are made of, and those chosen.

use std::fs;
use std::path::{Path, PathBuf};

use bulkhead_model::failure::Failure;

use super::mutant::Mutant;
use super::tables::Tables;
use super::{assembly, rust};

/// Folders with code that runs at EL2.
const FOLDERS: [&str; 2] = ["core/src", "el2/src"];

/// A source file.
#[derive(Debug)]
pub struct Source {
    /// Path from the root of the repository.
    pub file: String,
    /// Text.
    pub text: String,
}

/// All files of code that runs at EL2, without those of tests and those that the tables leave out; by path.
///
/// # Errors
///
/// One cannot be read.
pub fn sources(root: &Path, tables: &Tables) -> Result<Vec<Source>, Failure> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = FOLDERS.iter().map(|folder| root.join(folder)).collect();
    while let Some(folder) = folders.pop() {
        let unreadable = |path: &Path, why| {
            Failure::environment(format!("cannot read `{}`", path.display()), why, "")
        };
        for entry in fs::read_dir(&folder).map_err(|why| unreadable(&folder, why))? {
            let path = entry.map_err(|why| unreadable(&folder, why))?.path();
            let name = path.file_stem().unwrap_or_default();
            if name == "tests" {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let file = path.strip_prefix(root).unwrap_or(&path);
            let file = file.to_string_lossy().into_owned();
            if (file.ends_with(".rs") || file.ends_with(".s")) && !tables.is_left_out(&file) {
                let text = fs::read_to_string(&path).map_err(|why| unreadable(&path, why))?;
                found.push(Source { file, text });
            }
        }
    }
    found.sort_by(|one, two| one.file.cmp(&two.file));
    Ok(found)
}

/// All mutants of some files.
///
/// # Errors
///
/// A file is not Rust.
pub fn mutants(sources: &[Source]) -> Result<Vec<Mutant>, Failure> {
    let mut all = Vec::new();
    for Source { file, text } in sources {
        if file.ends_with(".s") {
            all.extend(assembly::mutants(file, text));
        } else {
            let found = rust::mutants(file, text);
            all.extend(found.map_err(|why| Failure::failed("cannot make mutants", why, ""))?);
        }
    }
    Ok(all)
}

/// A number for bytes: FNV-1a.
fn hash(start: u64, bytes: &[u8]) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(start, fold)
}

/// A number for all sources, which is another one when any of them changes.
pub fn seed(sources: &[Source]) -> u64 {
    let fold = |seed, source: &Source| {
        let seed = hash(seed, source.file.as_bytes());
        hash(seed, source.text.as_bytes())
    };
    sources.iter().fold(0xcbf2_9ce4_8422_2325, fold)
}

/// Draws `count` mutants: the same ones for the same seed, whatever their order.
pub fn draw(mutants: Vec<Mutant>, count: usize, seed: u64) -> Vec<Mutant> {
    let number = |mutant: &Mutant| {
        let key = &mutant.key;
        let mut number = hash(0xcbf2_9ce4_8422_2325, &seed.to_le_bytes());
        for word in [&mutant.file, &key.place, &key.was, &key.now] {
            number = hash(hash(number, word.as_bytes()), &[0]);
        }
        // Without this, texts that differ at their end only would be neighbours.
        let number = hash(number, &key.nth.to_le_bytes());
        (number ^ number >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ number >> 32
    };
    let mut mutants = mutants;
    mutants.sort_by_cached_key(number);
    mutants.truncate(count);
    mutants.sort_by(|one, two| (&one.file, one.range.start).cmp(&(&two.file, two.range.start)));
    mutants
}
