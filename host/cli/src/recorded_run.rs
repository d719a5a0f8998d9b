//! A recorded run as one HTML file, in the manner of [`super::page`].

use serde_json::json;

use super::page::{Parts, fill};
use crate::run::RunSummary;
use crate::run::recording::Recording;

/// The page of a recording.
pub fn recording(recording: &Recording, summary: &RunSummary) -> String {
    let figures = if summary.is_empty() {
        String::new()
    } else {
        summary.text()
    };
    fill(&Parts {
        title: &format!("{}: a run", recording.head.system),
        data: &json!({ "run": recording, "figures": figures }),
        script: include_str!("page/run.js"),
    })
}
