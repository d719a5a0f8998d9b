//! A recorded run as one HTML file, in the manner of the page of a plan.

use serde::Serialize;
use serde_json::json;

use bulkhead_planner::show::{Parts, fill};
use bulkhead_runner::run::RunSummary;
use bulkhead_runner::run::recording::Recording;

/// Data that the script draws.
#[derive(Serialize)]
struct Data<'a> {
    run: &'a Recording,
    figures: String,
}

/// The page of a recording.
pub fn page(recording: &Recording, summary: &RunSummary) -> String {
    let figures = if summary.is_empty() {
        String::new()
    } else {
        summary.text()
    };
    fill(&Parts {
        title: &format!("{}: a run", recording.head.system),
        same: "bulkhead show",
        data: &json!(Data {
            run: recording,
            figures,
        }),
        script: include_str!("recorded_run.js"),
    })
}
