//! Tables of the repository about mutants (`lab/mutants/`): which tests are for which files, which mutants are known to
//! die, and why others survive.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use bulkhead_model::failure::Failure;
use bulkhead_runner::temp_files;

use super::mutant::{Key, Mutant};

/// Path of the table of tests that are tried on the mutants of each file.
const TESTS: &str = "lab/mutants/tests.toml";
/// Path of the table of mutants that a test has killed.
const KILLED: &str = "lab/mutants/killed.toml";
/// Path of the table of mutants that survive, and why.
const SURVIVORS: &str = "lab/mutants/survivors.toml";

/// Tests for some files.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Files {
    /// Paths from the root of the repository, or beginnings of them.
    pub files: Vec<String>,
    /// Names of tests, in the order in which they are tried: the shortest first, as far as they are likely to notice.
    pub tests: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TestsFile {
    /// Files in which no mutant is made: text and figures for people.
    never: Vec<String>,
    /// Groups of files with their tests; the first that has a file counts.
    group: Vec<Files>,
}

/// A mutant that survives.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Survivor {
    /// File.
    pub file: String,
    /// Name in its file.
    #[serde(rename = "in")]
    pub place: String,
    /// Text that is replaced.
    pub was: String,
    /// Text that takes its place.
    pub now: String,
    /// Number of identical mutants before it in that place.
    #[serde(default)]
    pub nth: usize,
    /// Reason that no test notices.
    pub why: String,
}

impl Survivor {
    /// Whether it is this mutant.
    pub fn is(&self, mutant: &Mutant) -> bool {
        let Key {
            place,
            was,
            now,
            nth,
        } = &mutant.key;
        (&self.file, &self.place, &self.was, &self.now, &self.nth)
            == (&mutant.file, place, was, now, nth)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SurvivorsFile {
    #[serde(default)]
    survivor: Vec<Survivor>,
}

/// A mutant that a test has killed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Killed {
    /// Name in its file.
    #[serde(flatten)]
    pub key: Key,
    /// The test.
    pub by: String,
}

/// All tables about mutants.
#[derive(Debug)]
pub struct Tables {
    never: Vec<String>,
    groups: Vec<Files>,
    /// Mutants that survive.
    pub survivors: Vec<Survivor>,
    /// Mutants that were killed, by file.
    pub killed: BTreeMap<String, Vec<Killed>>,
}

impl Tables {
    /// Reads the tables of the repository at `root`.
    ///
    /// # Errors
    ///
    /// A file cannot be read or understood.
    pub fn load(root: &Path) -> Result<Self, Failure> {
        let TestsFile { never, group } = read(root, TESTS)?;
        let SurvivorsFile { survivor } = read(root, SURVIVORS)?;
        Ok(Self {
            never,
            groups: group,
            survivors: survivor,
            killed: read(root, KILLED)?,
        })
    }

    /// Whether a file is left out: no mutant is made in it.
    pub fn is_left_out(&self, file: &str) -> bool {
        self.never.iter().any(|start| file.starts_with(start))
    }

    /// The tests for a file.
    pub fn tests(&self, file: &str) -> &[String] {
        let has = |group: &&Files| group.files.iter().any(|start| file.starts_with(start));
        let group = self.groups.iter().find(has);
        group.map_or(&[], |group| &group.tests)
    }

    /// All groups of files.
    pub fn groups(&self) -> &[Files] {
        &self.groups
    }

    /// Returns why a mutant survives, if the repository says so.
    pub fn why(&self, mutant: &Mutant) -> Option<&str> {
        let survivor = self.survivors.iter().find(|survivor| survivor.is(mutant));
        survivor.map(|survivor| survivor.why.as_str())
    }

    /// The test that has killed a mutant.
    pub fn killer(&self, mutant: &Mutant) -> Option<&str> {
        let killed = self.killed.get(&mutant.file)?;
        let killed = killed.iter().find(|killed| killed.key == mutant.key)?;
        Some(&killed.by)
    }

    /// Puts a mutant that was tried among those that were killed, or takes it from them.
    pub fn note(&mut self, mutant: &Mutant, by: Option<&str>) {
        let killed = self.killed.entry(mutant.file.clone()).or_default();
        killed.retain(|killed| killed.key != mutant.key);
        killed.extend(by.map(|by| Killed {
            key: mutant.key.clone(),
            by: by.to_owned(),
        }));
    }

    /// Writes the mutants that were killed, without those that the code has no longer.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write_killed(&mut self, root: &Path, there: &[Mutant]) -> Result<(), Failure> {
        for (file, killed) in &mut self.killed {
            let known = |key: &Key| there.iter().any(|m| m.file == *file && m.key == *key);
            killed.retain(|killed| known(&killed.key));
            killed.sort();
        }
        self.killed.retain(|_, killed| !killed.is_empty());
        let path = root.join(KILLED);
        temp_files::write(&path, shown(&self.killed).as_bytes()).map_err(|why| {
            Failure::environment(format!("cannot write `{}`", path.display()), why, "")
        })
    }
}

/// The text of a file of killed mutants, one to a line.
fn shown(killed: &BTreeMap<String, Vec<Killed>>) -> String {
    let mut text = "# Mutants that a test has killed, by file: `./bulkhead mutants FILE --record` writes them.\n"
        .to_owned();
    for (file, killed) in killed {
        // Writing to a string does not fail.
        let _ = writeln!(text, "\"{file}\" = [");
        for Killed { key, by } in killed {
            let word = |word: &str| toml::Value::from(word).to_string();
            let (place, was, now) = (word(&key.place), word(&key.was), word(&key.now));
            let nth = match key.nth {
                0 => String::new(),
                nth => format!(", nth = {nth}"),
            };
            let by = word(by);
            let _ = writeln!(
                text,
                "    {{ in = {place}, was = {was}, now = {now}{nth}, by = {by} }},"
            );
        }
        text.push_str("]\n");
    }
    text
}

fn read<T: for<'a> Deserialize<'a>>(root: &Path, file: &str) -> Result<T, Failure> {
    let path = root.join(file);
    let what = || format!("cannot use `{}`", path.display());
    let text = std::fs::read_to_string(&path);
    let text = text.map_err(|why| Failure::environment(what(), why, ""))?;
    toml::from_str(&text)
        .map_err(|why| Failure::input(what(), why, "see docs/internals/mutants.md"))
}

#[cfg(test)]
mod tests {
    use super::super::sources::{draw, mutants, seed, sources};
    use super::*;
    use crate::testing::trial_tests;

    fn root() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn the_tables_name_tests_and_mutants_that_there_are() {
        let root = root();
        let tables = Tables::load(&root).unwrap();
        let tests = trial_tests(&root).unwrap();
        let sources = sources(&root, &tables).unwrap();
        let all = mutants(&sources).unwrap();
        assert!(all.len() > 5000, "{}", all.len());
        for source in &sources {
            assert!(!tables.tests(&source.file).is_empty(), "{}", source.file);
        }
        for name in tables.groups.iter().flat_map(|group| &group.tests) {
            let test = tests.iter().find(|test| test.name == *name);
            let test = test.unwrap_or_else(|| panic!("there is no test `{name}`"));
            // What operations cost runs as a part of `figures/ceilings`.
            let runs = test.on_request.is_none() || name.starts_with("figures/operations/");
            assert!(runs, "{name} runs on request only");
        }
        for file in tables.groups.iter().flat_map(|group| &group.files) {
            let has = sources
                .iter()
                .any(|source| source.file.starts_with(file.as_str()));
            assert!(has, "no source begins with `{file}`");
        }
        for survivor in &tables.survivors {
            let (file, place) = (&survivor.file, &survivor.place);
            let found = all.iter().find(|mutant| survivor.is(mutant));
            let mutant = found.unwrap_or_else(|| {
                panic!(
                    "{SURVIVORS}: {file}, `{place}` has no mutant `{}` to `{}`",
                    survivor.was, survivor.now
                )
            });
            assert!(
                survivor.why.ends_with('.'),
                "{mutant}: a reason is a sentence"
            );
            assert_eq!(tables.killer(mutant), None, "{mutant} dies and survives");
        }
    }

    #[test]
    fn what_was_killed_is_written_as_it_is_read() {
        let key = Key {
            place: "A::f".to_owned(),
            was: "\"isb\"".to_owned(),
            now: "a\\b".to_owned(),
            nth: 2,
        };
        let by = "system/hello/max".to_owned();
        let killed = BTreeMap::from([("el2/src/a.rs".to_owned(), vec![Killed { key, by }])]);
        let read: BTreeMap<String, Vec<Killed>> = toml::from_str(&shown(&killed)).unwrap();
        assert_eq!(read, killed);
    }

    #[test]
    fn a_sample_depends_on_the_sources_alone() {
        let tables = Tables::load(&root()).unwrap();
        let mut sources = sources(&root(), &tables).unwrap();
        let all = mutants(&sources).unwrap();
        let first = seed(&sources);
        let drawn = draw(all.clone(), 50, first);
        assert_eq!(drawn.len(), 50);
        let turned = all.iter().rev().cloned().collect();
        assert_eq!(draw(turned, 50, first), drawn);
        sources[0].text.push('\n');
        let second = seed(&sources);
        assert_ne!(first, second);
        let other = draw(all, 50, second);
        assert!(other.iter().filter(|mutant| drawn.contains(mutant)).count() < 10);
    }
}
