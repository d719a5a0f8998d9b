//! Findings for a description with TOML syntax errors: only those about tables without such errors are kept.

use std::ops::Range;

use super::code::Code;
use super::finding::{Finding, Span, Text};

/// Findings that may only follow from a table or a key that could not be read.
const OF_WHAT_IS_MISSING: [Code; 8] = [
    Code::BoardMissing,
    Code::CrashUnknownVm,
    Code::DoorbellUnknownShared,
    Code::DoorbellUnknownVm,
    Code::DoorbellNotShared,
    Code::SharedUnknownVm,
    Code::VmImage,
    Code::VmNone,
];

/// Drops findings after the syntax errors that may follow from them. `errors`: range of the syntax errors in `findings`.
pub(super) fn drop_what_follows(text: &Text, errors: Range<usize>, findings: &mut Vec<Finding>) {
    let tables = text.tables();
    let place = |finding: &Finding| finding.labels.first().map_or(0, |(span, _)| span.start);
    let wrong: Vec<usize> = findings[errors.clone()].iter().map(place).collect();
    let broken = |span: &Span| {
        let mut around = tables.iter().filter(|table| table.contains(&span.start));
        around.any(|table| wrong.iter().any(|place| table.contains(place)))
    };
    let mut number = 0;
    findings.retain(|finding| {
        let before = number < errors.end;
        number += 1;
        let sound = !finding.labels.iter().any(|(span, _)| broken(span));
        before || sound && !OF_WHAT_IS_MISSING.contains(&finding.code)
    });
}
