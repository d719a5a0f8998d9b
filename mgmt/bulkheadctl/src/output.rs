//! What is printed: text, or JSON.

use std::env;
use std::io::{self, IsTerminal, Write, stdout};

use bulkhead_control::failure::Failure;
use serde_json::{Value, json};

/// Output cannot be written; mostly because nobody reads it any more.
#[derive(Debug)]
pub struct Broken(pub io::Error);

/// Where output goes.
#[derive(Clone, Copy, Debug)]
pub struct Printer {
    /// It is JSON.
    pub json: bool,
    /// It goes to a terminal.
    pub terminal: bool,
    /// It may have colours.
    pub colours: bool,
}

/// Colours and weights of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// A heading.
    Bold,
    /// Of less interest.
    Dim,
    /// In order.
    Green,
    /// To be looked at.
    Yellow,
    /// Wrong.
    Red,
}

impl Printer {
    /// That of this process.
    pub fn new(json: bool) -> Self {
        let terminal = stdout().is_terminal();
        let unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            json,
            terminal,
            colours: terminal && !unwanted && !json,
        }
    }

    /// Prints text.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn text(&self, text: &str) -> Result<(), Broken> {
        let mut stdout = stdout().lock();
        let written = stdout.write_all(text.as_bytes());
        written.and_then(|()| stdout.flush()).map_err(Broken)
    }

    /// Prints a JSON document over several lines.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn document(&self, value: &Value) -> Result<(), Broken> {
        self.text(&format!("{value:#}\n"))
    }

    /// Prints a JSON document as one line, of many.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn line(&self, value: &Value) -> Result<(), Broken> {
        self.text(&format!("{value}\n"))
    }

    /// Prints why a verb failed: on stderr, or as JSON on stdout, in the form of the host tool's findings.
    pub fn failure(&self, failure: &Failure) {
        if !self.json {
            eprintln!("{failure}");
            return;
        }
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let finding = json!({
            "code": failure.code,
            "severity": "error",
            "message": failure.what,
            "reason": given(&failure.why),
            "remedy": given(&failure.advice),
        });
        // The exit status tells, if nobody reads this.
        let _ = self.document(&json!({ "ok": false, "findings": [finding] }));
    }

    /// The text in a colour, where there are colours.
    pub fn paint(&self, paint: Paint, text: &str) -> String {
        if !self.colours || text.is_empty() {
            return text.to_owned();
        }
        let code = match paint {
            Paint::Bold => 1,
            Paint::Dim => 2,
            Paint::Green => 32,
            Paint::Yellow => 33,
            Paint::Red => 31,
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}
