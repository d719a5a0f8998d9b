//! Progress of the tool's work, on stderr so that stdout stays the answer: a moving line on a
//! terminal, plain lines elsewhere.

use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// One piece of work under way. Dropping it without [`Step::done`] clears the moving line, so that an
/// error is printed on a clean one.
#[derive(Debug)]
pub struct Step {
    /// The moving line; none when stderr is no terminal.
    bar: Option<ProgressBar>,
}

impl Step {
    /// Announces the work. `what` is a phrase such as "fetching Debian's kernel".
    pub fn start(what: impl Display) -> Self {
        if !io::stderr().is_terminal() {
            eprintln!("  {what}");
            return Self { bar: None };
        }
        let bar = ProgressBar::new_spinner().with_message(what.to_string());
        bar.set_style(style("  {spinner} {wide_msg}"));
        bar.enable_steady_tick(Duration::from_millis(120));
        Self { bar: Some(bar) }
    }

    /// Changes the moving line; says nothing where there is none, so that logs stay short.
    pub fn now(&self, what: impl Display) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_string());
        }
    }

    /// Shows how much is done, in per cent, from the first call on.
    pub fn percent(&self, done: u64) {
        if let Some(bar) = &self.bar {
            if bar.length().is_none() {
                bar.set_style(style("  {spinner} {bar:30} {percent:>3}% {wide_msg}"));
                bar.set_length(100);
            }
            bar.set_position(done.min(100));
        }
    }

    /// Shows that so many of so many are done, and the name of the last one; where no line moves, once in each quarter.
    pub fn count(&self, done: usize, of: usize, what: impl Display) {
        let percent = |done: usize| (done * 100).checked_div(of).unwrap_or(100);
        self.percent(percent(done) as u64);
        self.now(format_args!("{what}, {done} of {of}"));
        if self.bar.is_none() && percent(done) / 25 > percent(done.saturating_sub(1)) / 25 {
            eprintln!("  {done} of {of}");
        }
    }

    /// Ends the work with one line that stays.
    pub fn done(self, what: impl Display) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        eprintln!("  {what}");
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A template of this module; a wrong one falls back to indicatif's own rather than ending the work.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}
