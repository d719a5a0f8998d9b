//! What is wrong with a policy: where in the file, why, and what to do. It looks as failures of the management's programs do.

use std::ops::Range;

use bulkhead_control::failure::{Failure, Outcome};
use serde_json::{Value, json};

/// Bytes of the file.
pub type Span = Range<usize>;

/// A mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// A word for programs, which stays the same: `policy::key`.
    pub code: &'static str,
    /// What is wrong: one sentence without a full stop.
    pub message: String,
    /// Where, with what there is to say about each place; the first is where it is wrong.
    pub places: Vec<(Span, String)>,
    /// What to do.
    pub help: String,
}

impl Fault {
    /// A mistake at a place; `label` stands under it.
    pub fn new(
        code: &'static str,
        message: impl Into<String>,
        span: Span,
        label: impl Into<String>,
    ) -> Self {
        Self {
            code,
            message: message.into(),
            places: vec![(span, label.into())],
            help: String::new(),
        }
    }

    /// The same with advice.
    pub fn help(self, help: impl Into<String>) -> Self {
        Self {
            help: help.into(),
            ..self
        }
    }

    /// The same with another place that has to do with it.
    pub fn also(mut self, span: Span, label: impl Into<String>) -> Self {
        self.places.push((span, label.into()));
        self
    }
}

/// The text of a policy with the name of its file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// Name of the file.
    pub name: String,
    /// What is in it.
    pub source: String,
}

impl Text {
    /// Line and column of a byte, both from 1; columns are characters.
    pub fn position(&self, offset: usize) -> (usize, usize) {
        let before = self.source.get(..offset).unwrap_or(&self.source);
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        (line, column)
    }

    /// The mistake as a failure: file, line, column, the line with the place marked, what to do.
    pub fn failure(&self, fault: &Fault) -> Failure {
        let first = fault.places.first();
        let (line, column) = self.position(first.map_or(0, |(span, _)| span.start));
        let lines: Vec<String> = fault
            .places
            .iter()
            .map(|(span, label)| self.marked(span, label))
            .collect();
        Failure {
            code: fault.code,
            outcome: Outcome::BadInput,
            what: format!("{}:{line}:{column}: {}", self.name, fault.message),
            why: lines.join("\n"),
            advice: fault.help.clone(),
        }
    }

    /// The line of a place, and below it marks and what there is to say.
    fn marked(&self, span: &Span, label: &str) -> String {
        let (line, column) = self.position(span.start);
        let text = self.source.lines().nth(line - 1).unwrap_or_default();
        let text = text.replace('\t', " ");
        let number = line.to_string();
        let rest = text.chars().count().saturating_sub(column - 1);
        let length = self.source.get(span.clone()).map_or(0, |marked| {
            marked.lines().next().unwrap_or_default().chars().count()
        });
        let marks = "^".repeat(length.clamp(1, rest.max(1)));
        let blanks = " ".repeat(number.len() + 2 + column);
        format!("{number} | {text}\n{blanks}{marks} {label}")
    }

    /// The mistake for programs, in the form of the host tool's findings.
    pub fn finding(&self, fault: &Fault) -> Value {
        let place = |offset: usize| {
            let (line, column) = self.position(offset);
            json!({ "line": line, "column": column })
        };
        let places: Vec<Value> = fault
            .places
            .iter()
            .map(|(span, label)| {
                let mut at = place(span.start);
                at["file"] = json!(self.name);
                at["end"] = place(span.end);
                at["length"] = json!(span.len());
                at["label"] = json!(label);
                at
            })
            .collect();
        json!({
            "code": fault.code,
            "severity": "error",
            "message": fault.message,
            "places": places,
            "reason": fault.places.first().map(|(_, label)| label),
            "remedy": (!fault.help.is_empty()).then_some(&fault.help),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_shows_its_line_with_the_place_marked() {
        let text = Text {
            name: "p.toml".to_owned(),
            source: "a = 1\né = { bad = 2 }\n".to_owned(),
        };
        let start = text.source.find("bad").expect("there");
        let fault = Fault::new("policy::key", "no `bad`", start..start + 3, "unknown").help("good");
        assert_eq!(
            text.failure(&fault).to_string(),
            "error: p.toml:2:7: no `bad`\n  | 2 | é = { bad = 2 }\n  |           ^^^ unknown\n  = help: good"
        );
        let finding = text.finding(&fault);
        assert_eq!(finding["places"][0]["line"], 2);
        assert_eq!(finding["places"][0]["end"]["column"], 10);
        // The end of the file, behind the last line.
        let end = text.source.len();
        let fault = Fault::new("policy::syntax", "more", end..end, "here");
        assert!(text.failure(&fault).why.ends_with("^ here"));
    }
}
