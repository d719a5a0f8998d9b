//! Systems that tests have built.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bulkhead_model::failure::Failure;
use bulkhead_runner::run::System;

type Build = Arc<OnceLock<Result<System, String>>>;

/// Systems that tests have built, so that each is built once.
#[derive(Debug, Default)]
pub struct Builds(Mutex<BTreeMap<PathBuf, Build>>);

impl Builds {
    /// Returns the built system of a description; the first caller builds it.
    pub fn get(&self, description: &Path) -> Result<System, String> {
        let mut builds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let build = Arc::clone(builds.entry(description.to_owned()).or_default());
        drop(builds);
        let built = build.get_or_init(|| {
            System::build(description, None).map_err(|stopped| Failure::from(stopped).to_string())
        });
        built.clone()
    }
}
