//! Programs that this process has built.
//!
//! Cargo takes a third of a second to find that nothing has changed, and a run of all tests would ask a thousand times. What is
//! changed while the process runs is built by the next one: all that it builds is of one state of the sources.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bulkhead_model::failure::Failure;

/// A program, once it is built. Who wants one that is being built waits for it.
type Program = Arc<Mutex<Option<PathBuf>>>;

/// Programs by name.
#[derive(Debug)]
pub struct Built(Mutex<BTreeMap<String, Program>>);

impl Built {
    /// None.
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Returns the path of a program, which the first caller builds; after one that failed the next one tries again.
    ///
    /// # Errors
    /// Those of `build`.
    pub fn get(
        &self,
        name: &str,
        build: impl FnOnce() -> Result<PathBuf, Failure>,
    ) -> Result<PathBuf, Failure> {
        let mut programs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let program = Arc::clone(programs.entry(name.to_owned()).or_default());
        drop(programs);
        let mut program = program.lock().unwrap_or_else(PoisonError::into_inner);
        // Somebody may have cleaned up.
        if let Some(path) = program.as_ref().filter(|path| path.is_file()) {
            return Ok(path.clone());
        }
        let path = build()?;
        *program = Some(path.clone());
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_built_once_until_it_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let built = Built::new();
        let mut calls = 0;
        let mut get = |name: &str| {
            built.get(name, || {
                calls += 1;
                let path = folder.path().join(name);
                std::fs::write(&path, b"").unwrap();
                Ok(path)
            })
        };
        let path = get("a").unwrap();
        assert_eq!(get("a").unwrap(), path);
        assert_ne!(get("b").unwrap(), path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(get("a").unwrap(), path);
        assert_eq!(calls, 3);
    }

    #[test]
    fn a_failure_is_told_and_not_kept() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let built = Built::new();
        let fails = || Err(Failure::failed("no", "", ""));
        assert!(built.get("a", fails).is_err());
        let path = || Ok(file.path().to_owned());
        assert_eq!(built.get("a", path).unwrap(), file.path());
    }
}
