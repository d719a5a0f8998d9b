//! What the tests of findings have in common.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The codes that stand in the sources, without `bulkhead::`.
pub fn codes() -> BTreeSet<String> {
    let mut codes = BTreeSet::new();
    for folder in ["describe", "board", "planner"] {
        for entry in fs::read_dir(Path::new("src").join(folder)).expect("sources") {
            let text = fs::read_to_string(entry.expect("entry").path()).expect("source");
            let quoted = text
                .split('"')
                .filter_map(|part| part.strip_prefix("bulkhead::"));
            codes.extend(quoted.map(str::to_owned));
        }
    }
    codes
}
