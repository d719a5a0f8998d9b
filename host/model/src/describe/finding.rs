//! Errors and warnings about a description, with the places in its text.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, SourceCode,
};

use serde::Serialize;

use super::code::{Code, Severity};

/// Width of messages: fixed, so that they read the same everywhere.
const WIDTH: usize = 100;

/// Bytes of the description's text.
pub type Span = Range<usize>;

/// One thing that is wrong, or worth knowing.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Kind of the mistake.
    pub code: Code,
    /// Statement of what is wrong: one sentence without a full stop.
    pub message: String,
    /// Places with what there is to say about each; the first is where it is wrong, others are the
    /// other parties.
    pub labels: Vec<(Span, String)>,
    /// Remedy.
    pub help: Option<String>,
}

impl Finding {
    /// A new finding, without a place.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            code,
            message,
            labels: Vec::new(),
            help: None,
        }
    }

    /// Whether it is an error; else it is a warning.
    pub const fn is_error(&self) -> bool {
        matches!(self.code.severity(), Severity::Error)
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
    /// Line and column of a byte.
    pub fn position(&self, offset: usize) -> Position {
        let before = self.source.get(..offset).unwrap_or(&self.source);
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
        Position { line, column }
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

    /// Line that says how to read more about findings; empty if there are none.
    pub fn hint(findings: &[Finding]) -> String {
        let error = findings.iter().find(|finding| finding.is_error());
        let of = error.or(findings.first());
        of.map_or_else(String::new, |finding| {
            let code = finding.code.short();
            format!("more about each of them: bulkhead explain CODE, such as {code}\n")
        })
    }

    /// All findings for programs.
    pub fn verdict<'a>(&'a self, findings: &'a [Finding]) -> Verdict<'a> {
        Verdict {
            ok: !findings.iter().any(Finding::is_error),
            findings: findings.iter().map(|finding| self.tell(finding)).collect(),
        }
    }

    fn tell<'a>(&'a self, finding: &'a Finding) -> Told<'a> {
        let place = |(span, label): &'a (Span, String)| Place {
            file: &self.name,
            start: self.position(span.start),
            end: self.position(span.end),
            length: span.len(),
            label,
        };
        Told {
            code: finding.code,
            severity: finding.code.severity(),
            message: &finding.message,
            places: finding.labels.iter().map(place).collect(),
            reason: finding.labels.first().map(|(_, label)| label.as_str()),
            remedy: finding.help.as_deref(),
            explain: finding.code.short(),
        }
    }
}

/// Output of `bulkhead check --json`.
#[derive(Debug, Serialize)]
pub struct Verdict<'a> {
    ok: bool,
    findings: Vec<Told<'a>>,
}

/// A finding: what is wrong, why, and what to do.
#[derive(Debug, Serialize)]
struct Told<'a> {
    code: Code,
    severity: Severity,
    message: &'a str,
    places: Vec<Place<'a>>,
    reason: Option<&'a str>,
    remedy: Option<&'a str>,
    /// Short name of the code, as `bulkhead explain` takes it.
    explain: &'a str,
}

/// A range of a description with what there is to say about it.
#[derive(Debug, Serialize)]
struct Place<'a> {
    file: &'a str,
    #[serde(flatten)]
    start: Position,
    /// Position of the character behind the range.
    end: Position,
    /// Length in bytes.
    length: usize,
    label: &'a str,
}

/// A place in a text, counted from 1; columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
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
        Some(Box::new(self.finding.code.name()))
    }

    fn severity(&self) -> Option<miette::Severity> {
        Some(match self.finding.code.severity() {
            Severity::Error => miette::Severity::Error,
            Severity::Warning => miette::Severity::Warning,
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
