//! What is no TOML in a description, or is there twice. Of other findings only those about tables without such errors are kept.

use std::ops::Range;

use toml::de::{DeTable, DeValue, Error};

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

/// Words of the parser for a table or a key that is there already.
const TWICE: &str = "duplicate key";

/// Reports what the parser found.
pub(super) fn report(text: &Text, root: &DeTable, errors: &[Error], findings: &mut Vec<Finding>) {
    let mut entries = Vec::new();
    collect(text, root, None, &mut entries);
    let tables = text.tables();
    let block = |at: usize| tables.iter().find(|table| table.contains(&at));
    // Keys of a table that is there twice are not reported one by one.
    let mut again: Vec<&Span> = Vec::new();
    for error in errors {
        let span = error.span().unwrap_or(0..0);
        if error.message() != TWICE {
            let finding = Finding::new(Code::TomlSyntax, "this is not TOML");
            let help = "strings stand in quotes; see https://toml.io";
            findings.push(finding.at(span, error.message()).help(help));
            continue;
        }
        let block = block(span.start);
        let word = text.source.get(span.clone()).unwrap_or_default();
        if let Some(heading) = block.and_then(|block| heading(text, block, &span)) {
            let before = tables.iter().filter(|table| table.end <= span.start);
            let mut places = before.filter_map(|table| place(text, table));
            let first = places.find(|place| same(text, place, &heading));
            again.extend(block);
            let table = text.source.get(heading.clone()).unwrap_or_default();
            findings.push(
                Finding::new(Code::TomlTwice, format!("`{table}` is there twice"))
                    .at(heading, "again")
                    .also(first, "the first")
                    .help("put all of its keys under one heading, or give one of the two another name"),
            );
            continue;
        }
        if block.is_some_and(|block| again.contains(&block)) {
            continue;
        }
        let mut first: Vec<&Entry> = entries
            .iter()
            .filter(|entry| entry.span.start < span.start)
            .filter(|entry| text.source.get(entry.span.clone()) == Some(word))
            .filter(|entry| match &entry.inside {
                Some(inside) => inside.contains(&span.start),
                None => block.is_some_and(|block| block.contains(&entry.span.start)),
            })
            .collect();
        first.sort_by_key(|entry| entry.span.start);
        findings.push(
            Finding::new(
                Code::TomlTwice,
                format!("`{word}` is there twice in one table"),
            )
            .at(span, "again")
            .also(first.last().map(|entry| entry.span.clone()), "the first")
            .help("leave one of the two out"),
        );
    }
}

/// A key where the parser kept it.
struct Entry {
    span: Span,
    /// The inline table in which it is, if it is in one.
    inside: Option<Span>,
}

/// Adds the keys of a table and of all below.
fn collect(text: &Text, table: &DeTable, inside: Option<&Span>, entries: &mut Vec<Entry>) {
    for (key, value) in table.iter() {
        entries.push(Entry {
            span: key.span(),
            inside: inside.cloned(),
        });
        let list = match value.get_ref() {
            DeValue::Array(list) => list.iter().collect(),
            _ => vec![value],
        };
        for value in list {
            if let DeValue::Table(below) = value.get_ref() {
                let span = value.span();
                let inline = text.source.as_bytes().get(span.start) == Some(&b'{');
                let inside = if inline { Some(&span) } else { inside };
                collect(text, below, inside, entries);
            }
        }
    }
}

/// The heading of a block, from `[` to `]`; none: it has none.
fn place(text: &Text, block: &Span) -> Option<Span> {
    let line = text.source.get(block.start..)?.lines().next()?;
    let start = line.find(|c: char| !c.is_whitespace())?;
    let line = line.get(start..)?.split('#').next()?.trim_end();
    line.starts_with('[').then_some(())?;
    let start = block.start + start;
    Some(start..start + line.len())
}

/// The heading of a block if `at` lies in it.
fn heading(text: &Text, block: &Span, at: &Span) -> Option<Span> {
    place(text, block).filter(|place| place.contains(&at.start))
}

/// Whether two headings are of one table.
fn same(text: &Text, one: &Span, other: &Span) -> bool {
    let plain = |span: &Span| {
        let written = text.source.get(span.clone()).unwrap_or_default();
        let mut plain = written.to_owned();
        plain.retain(|c| !c.is_whitespace() && c != '"' && c != '\'');
        plain
    };
    plain(one) == plain(other)
}

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
