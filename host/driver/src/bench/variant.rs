//! Systems that are described in `lab/systems` but for some words.

use std::path::Path;

use bulkhead_model::checkout;
use bulkhead_model::failure::Failure;
use bulkhead_runner::build::{Built, build};

/// Builds the system `name`, with words in its description replaced by others wherever they stand.
///
/// # Errors
///
/// It has no such words, or cannot be read, written to `folder` or built.
pub(crate) fn variant(name: &str, words: &[(&str, &str)], folder: &Path) -> Result<Built, Failure> {
    let cannot = |error| Failure::environment("cannot prepare the measurement", error, "");
    let mut text = std::fs::read_to_string(checkout::root().join(name)).map_err(cannot)?;
    for (old, new) in words {
        if !text.contains(old) {
            return Err(Failure::input(format!("{name} has no `{old}`"), "", ""));
        }
        text = text.replace(old, new);
    }
    let path = folder.join(name.trim_start_matches("lab/systems/"));
    std::fs::write(&path, text).map_err(cannot)?;
    build(&path).map_err(Failure::from)
}
