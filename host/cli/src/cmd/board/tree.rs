//! The device tree of a board, from a file or from Debian's, and what is shown of it.

use std::path::Path;

use bulkhead_abi::plan::Memory;
use serde::Serialize;
use serde_json::json;

use bulkhead_model::board::{self, Firmware};
use bulkhead_model::failure::Failure;
use bulkhead_model::survey::Survey;
use bulkhead_runner::fetch;

/// Output of `show --json` and `import --json`.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    survey: &'a Survey,
    /// What its `board.toml` says of the firmware.
    #[serde(skip_serializing_if = "Option::is_none")]
    firmware_stated: Option<Firmware>,
}

/// Reads a tree that came from `place`.
pub(super) fn survey(bytes: Vec<u8>, memory: &[Memory], place: &str) -> Result<Survey, Failure> {
    Survey::read_with(bytes, memory).map_err(|why| {
        Failure::input(
            format!("{place} gives no board"),
            format!("it is {why}"),
            "give the flattened device tree of an arm64 board (.dtb)",
        )
    })
}

/// The bytes of `debian:NAME` or of a file; none if there is no such file and the word may be a name.
pub(super) fn bytes(source: &str) -> Result<Option<Vec<u8>>, Failure> {
    if let Some(name) = source.strip_prefix("debian:") {
        return board::read_file(&fetch::device_tree(name)?).map(Some);
    }
    let file = Path::new(source);
    if !file.exists() && board::is_name(source) {
        return Ok(None);
    }
    board::read_file(file).map(Some)
}

/// Shows what a board has; `stated`: what its `board.toml` says of the firmware.
pub(super) fn say(survey: &Survey, stated: Option<(Firmware, &Path)>, (whole, json): (bool, bool)) {
    if json {
        let firmware_stated = stated.map(|(firmware, _)| firmware);
        let shown = Shown {
            survey,
            firmware_stated,
        };
        println!("{:#}", json!(shown));
        return;
    }
    print!("{}", survey.text(whole));
    if let Some((firmware, file)) = stated {
        let word = firmware.word();
        println!(
            "Its firmware = \"{word}\" ({}), unless [board] says otherwise.",
            file.display()
        );
    }
}
