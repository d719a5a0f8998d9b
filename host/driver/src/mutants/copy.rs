//! A copy of the sources with a target folder of its own, in which EL2 is changed and built.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bulkhead_model::failure::Failure;
use bulkhead_planner::image::El2;
use bulkhead_runner::cross_build::{Build, el2_of};
use bulkhead_runner::temp_files::{self, Noted};
use tempfile::TempDir;

use super::mutant::Mutant;

/// The images of EL2 as it is, by what they are built for.
pub type Originals = Arc<Mutex<Vec<(Build, El2)>>>;

/// Result of building a changed EL2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Built {
    /// Nobody has asked for it.
    NotYet,
    /// It does not compile.
    Refused(String),
    /// It is the same to the byte.
    Same,
    /// It is another one.
    Changed,
}

/// A copy. It goes with the tool.
#[derive(Debug)]
pub struct Copy {
    folder: Noted<TempDir>,
}

/// Names that a copy leaves out: what is built, fetched or kept by git.
const LEFT_OUT: [&str; 3] = ["target", "out", ".git"];

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (name, path) = (entry.file_name(), entry.path());
        if LEFT_OUT.iter().any(|left_out| name == *left_out) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            copy_folder(&path, &to.join(name))?;
        } else {
            // What a link names is copied, if it is there.
            match fs::copy(&path, to.join(name)) {
                Err(why) if why.kind() == io::ErrorKind::NotFound => {}
                done => drop(done?),
            }
        }
    }
    Ok(())
}

impl Copy {
    /// Copies the checkout at `root` to where cargo keeps what it builds.
    ///
    /// # Errors
    ///
    /// There is no room.
    pub fn of(root: &Path) -> Result<Self, Failure> {
        let target = std::env::var_os("CARGO_TARGET_DIR");
        let target = target.map_or_else(|| root.join("target"), PathBuf::from);
        let made = || {
            fs::create_dir_all(&target)?;
            let folder = temp_files::folder_in(&target)?;
            copy_folder(root, &folder.value.path().join("sources"))?;
            Ok(folder)
        };
        let folder = made().map_err(|why: io::Error| {
            let what = format!("cannot copy the sources into `{}`", target.display());
            Failure::environment(what, why, "make room there")
        })?;
        Ok(Self { folder })
    }

    /// Returns the folder for systems with its EL2.
    pub fn systems(&self) -> PathBuf {
        self.folder.value.path().join("systems")
    }

    /// Writes a source file.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn put(&self, file: &str, text: &str) -> Result<(), Failure> {
        let path = self.folder.value.path().join("sources").join(file);
        fs::write(&path, text).map_err(|why| {
            Failure::environment(format!("cannot write `{}`", path.display()), why, "")
        })
    }

    /// Writes the file of a mutant with its change.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn apply(&self, mutant: &Mutant, text: &str) -> Result<(), Failure> {
        self.put(&mutant.file, &mutant.apply(text))
    }

    /// Returns a function that builds the EL2 of the copy as it is, and keeps its image.
    pub fn original(
        &self,
        originals: &Originals,
    ) -> impl Fn(Build) -> Result<PathBuf, Failure> + Send + Sync + 'static {
        let (folder, originals) = (self.folder.value.path().to_owned(), Arc::clone(originals));
        move |build| {
            let path = el2_of(&folder.join("sources"), &folder.join("target"), build)?;
            let mut originals = originals.lock().unwrap_or_else(PoisonError::into_inner);
            if !originals.iter().any(|(known, _)| *known == build) {
                originals.push((build, El2::read(&path)?));
            }
            Ok(path)
        }
    }

    /// Returns a function that builds the changed EL2, fails if it is the same as the original, and says in `built`
    /// what it is.
    pub fn changed(
        &self,
        originals: &Originals,
        built: &Arc<Mutex<Built>>,
    ) -> impl Fn(Build) -> Result<PathBuf, Failure> + Send + Sync + 'static {
        let folder = self.folder.value.path().to_owned();
        let (originals, built) = (Arc::clone(originals), Arc::clone(built));
        let say = move |what| *built.lock().unwrap_or_else(PoisonError::into_inner) = what;
        move |build| {
            let path = el2_of(&folder.join("sources"), &folder.join("target"), build);
            let read = path.and_then(|path| Ok((El2::read(&path)?, path)));
            let (el2, path) = read.inspect_err(|why| say(Built::Refused(why.to_string())))?;
            let originals = originals.lock().unwrap_or_else(PoisonError::into_inner);
            let same = originals.iter().find(|(known, _)| *known == build);
            if same.is_some_and(|(_, original)| *original == el2) {
                say(Built::Same);
                return Err(Failure::failed("nothing changes in this EL2", "", ""));
            }
            say(Built::Changed);
            Ok(path)
        }
    }
}
