//! A recorded run as one HTML file, in the manner of [`super::page`].

use serde::Serialize;
use serde_json::json;

use super::page::{Parts, fill};
use crate::run::RunSummary;
use crate::run::recording::Recording;

/// What the script draws.
#[derive(Serialize)]
struct Data<'a> {
    run: &'a Recording,
    figures: String,
}

/// The page of a recording.
pub fn recording(recording: &Recording, summary: &RunSummary) -> String {
    let figures = if summary.is_empty() {
        String::new()
    } else {
        summary.text()
    };
    fill(&Parts {
        title: &format!("{}: a run", recording.head.system),
        data: &json!(Data {
            run: recording,
            figures,
        }),
        script: include_str!("page/run.js"),
    })
}
