//! What is wrong with a description, with the places in its text.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, Severity,
    SourceCode,
};

use crate::explain;

/// Width of messages: fixed, so that they read the same everywhere.
const WIDTH: usize = 100;

/// Bytes of the description's text.
pub type Span = Range<usize>;

/// One thing that is wrong, or worth knowing.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Stable name, such as `bulkhead::pcpu::shared`.
    pub code: &'static str,
    /// What is wrong: one sentence without a full stop.
    pub message: String,
    /// Places with what there is to say about each; the first is where it is wrong, others are the
    /// other parties.
    pub labels: Vec<(Span, String)>,
    /// What to do about it.
    pub help: Option<String>,
    /// Whether the description is still good.
    pub harmless: bool,
}

impl Finding {
    /// A new error.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            code,
            message,
            labels: Vec::new(),
            help: None,
            harmless: false,
        }
    }

    /// The same as a warning.
    pub fn harmless(self) -> Self {
        Self {
            harmless: true,
            ..self
        }
    }

    /// Adds a place.
    pub fn at(mut self, span: Span, label: impl Into<String>) -> Self {
        self.labels.push((span, label.into()));
        self
    }

    /// Adds the place of another party, if it has one.
    pub fn also(self, span: Option<Span>, label: impl Into<String>) -> Self {
        match span {
            Some(span) => self.at(span, label),
            None => self,
        }
    }

    /// Adds a remedy.
    pub fn help(self, help: impl Into<String>) -> Self {
        Self {
            help: Some(help.into()),
            ..self
        }
    }
}

/// A description's text with its name, for messages.
#[derive(Clone, Debug)]
pub struct Text {
    /// Path as the user gave it.
    pub name: String,
    /// Content.
    pub source: Arc<str>,
}

impl Text {
    /// Line and column of a byte, both from 1.
    pub fn position(&self, offset: usize) -> (usize, usize) {
        let before = self.source.get(..offset).unwrap_or(&self.source);
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
        (line, column)
    }

    /// The tables, as ranges of bytes: each from its header to the next one, or to the end.
    pub fn tables(&self) -> Vec<Span> {
        let mut starts = vec![0];
        let mut offset = 0;
        for line in self.source.split_inclusive('\n') {
            if line.trim_start().starts_with('[') && offset > 0 {
                starts.push(offset);
            }
            offset += line.len();
        }
        let ends = starts.iter().skip(1).copied().chain([offset + 1]);
        let tables = starts.iter().zip(ends);
        tables.map(|(start, end)| *start..end).collect()
    }

    /// All findings as text in the manner of rustc.
    pub fn render(&self, findings: &[Finding], colours: bool) -> String {
        let theme = if colours {
            GraphicalTheme::unicode()
        } else {
            GraphicalTheme::unicode_nocolor()
        };
        let handler = GraphicalReportHandler::new_themed(theme)
            .with_width(WIDTH)
            .with_links(false)
            .with_context_lines(1);
        let mut text = String::new();
        for finding in findings {
            let source =
                NamedSource::new(&self.name, Arc::clone(&self.source)).with_language("TOML");
            let whole = Rendered { finding, source };
            // Writing to a string fails only if the handler does, and then there is nothing to add.
            let _ = handler.render_report(&mut text, &whole);
            text.push('\n');
        }
        text
    }

    /// How to read more about findings: a line, if there are any.
    pub fn hint(findings: &[Finding]) -> String {
        let error = findings.iter().find(|finding| !finding.harmless);
        let of = error.or(findings.first());
        of.map_or_else(String::new, |finding| {
            let code = explain::short(finding.code);
            format!("more about each of them: bulkhead explain CODE, such as {code}\n")
        })
    }

    /// All findings as JSON: what is wrong, why and what to do; places have lines and columns from 1, columns in characters, and
    /// end where the next character begins; `explain` is what `bulkhead explain` takes.
    pub fn json(&self, findings: &[Finding]) -> serde_json::Value {
        let place = |(span, label): &(Span, String)| {
            let (line, column) = self.position(span.start);
            let (end_line, end_column) = self.position(span.end);
            serde_json::json!({
                "file": self.name, "line": line, "column": column,
                "end": { "line": end_line, "column": end_column },
                "length": span.len(), "label": label,
            })
        };
        findings
            .iter()
            .map(|finding| {
                serde_json::json!({
                    "code": finding.code,
                    "severity": if finding.harmless { "warning" } else { "error" },
                    "message": finding.message,
                    "places": finding.labels.iter().map(place).collect::<Vec<_>>(),
                    "reason": finding.labels.first().map(|(_, label)| label),
                    "remedy": finding.help,
                    "explain": explain::short(finding.code),
                })
            })
            .collect()
    }
}

/// A finding together with the text, as miette wants it.
#[derive(Debug)]
struct Rendered<'a> {
    finding: &'a Finding,
    source: NamedSource<Arc<str>>,
}

impl fmt::Display for Rendered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.finding.message)
    }
}

impl std::error::Error for Rendered<'_> {}

impl Diagnostic for Rendered<'_> {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(self.finding.code))
    }

    fn severity(&self) -> Option<Severity> {
        Some(if self.finding.harmless {
            Severity::Warning
        } else {
            Severity::Error
        })
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.finding
            .help
            .as_ref()
            .map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        (!self.finding.labels.is_empty()).then_some(&self.source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let labels = self
            .finding
            .labels
            .iter()
            .enumerate()
            .map(|(number, (span, label))| {
                let text = (!label.is_empty()).then(|| label.clone());
                if number == 0 {
                    LabeledSpan::new_primary_with_span(text, span.clone())
                } else {
                    LabeledSpan::new_with_span(text, span.clone())
                }
            });
        Some(Box::new(labels))
    }
}
