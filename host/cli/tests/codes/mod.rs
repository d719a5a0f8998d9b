//! What the tests of findings have in common.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The codes that stand in the sources, without `bulkhead::`.
pub fn codes() -> BTreeSet<String> {
    let mut codes = BTreeSet::new();
    for folder in ["model/src/describe", "model/src/board", "planner/src"] {
        let entries = fs::read_dir(Path::new("..").join(folder)).expect("sources");
        let files = entries.map(|entry| entry.expect("entry").path());
        for file in files.filter(|file| file.is_file()) {
            let text = fs::read_to_string(file).expect("source");
            let quoted = text
                .split('"')
                .filter_map(|part| part.strip_prefix("bulkhead::"));
            codes.extend(quoted.map(str::to_owned));
        }
    }
    codes
}
