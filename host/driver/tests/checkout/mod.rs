//! The checkout, for tests that read it.

use std::fs;
use std::path::{Path, PathBuf};

/// Its folder.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the repository")
}

/// The text of a file, by its path from the root.
pub fn text(name: &str) -> String {
    let text = fs::read_to_string(root().join(name));
    text.unwrap_or_else(|error| panic!("{name}: {error}"))
}
