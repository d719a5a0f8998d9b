//! Where downloads live: outside the repository, shared by all checkouts, named by package version.

use std::env;
use std::path::PathBuf;

/// The cache folder: `$BULKHEAD_CACHE`, `$XDG_CACHE_HOME/bulkhead` or `~/.cache/bulkhead`; without a
/// home folder, one under the system's temporary folder. It need not exist yet.
pub fn folder() -> PathBuf {
    let named = |name: &str| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    named("BULKHEAD_CACHE")
        .or_else(|| named("XDG_CACHE_HOME").map(|base| base.join("bulkhead")))
        .or_else(|| named("HOME").map(|home| home.join(".cache/bulkhead")))
        .unwrap_or_else(|| env::temp_dir().join("bulkhead-cache"))
}
