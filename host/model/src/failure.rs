//! Errors with which the tool stops: what failed, where, why, and what to do about it.

use std::fmt;
use std::process::ExitCode;

/// Result of a subcommand; the number is the exit status of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did what was asked.
    Done = 0,
    /// The requested action failed: a test, a figure above its ceiling, a guest that crashed.
    Failed = 1,
    /// The input is wrong: arguments or description.
    BadInput = 2,
    /// The environment lacks something: a tool, a package, the network.
    Environment = 3,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(outcome as u8)
    }
}

/// A failure outside a description (those have source spans): a tool, a file, the network.
#[derive(Debug)]
pub struct Failure {
    /// Exit status that goes with it.
    pub outcome: Outcome,
    /// Operation that failed, and its place: one line.
    pub what: String,
    /// Reason, in the words of the tool or the system call that refused. May have several lines.
    pub why: String,
    /// Advice to the user; empty when nothing sensible can be said.
    pub advice: String,
}

impl Failure {
    /// Failure because the environment lacks something: exit status 3.
    pub fn environment(
        what: impl Into<String>,
        why: impl fmt::Display,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            outcome: Outcome::Environment,
            what: what.into(),
            why: why.to_string(),
            advice: advice.into(),
        }
    }

    /// Failure because the input is wrong: exit status 2.
    pub fn input(
        what: impl Into<String>,
        why: impl fmt::Display,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            outcome: Outcome::BadInput,
            ..Self::environment(what, why, advice)
        }
    }

    /// Failure of the requested action: exit status 1.
    pub fn failed(
        what: impl Into<String>,
        why: impl fmt::Display,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            outcome: Outcome::Failed,
            ..Self::environment(what, why, advice)
        }
    }

    /// Prints it on stderr and gives the outcome to end with.
    pub fn report(self) -> Outcome {
        eprintln!("{self}");
        self.outcome
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.what)?;
        for line in self.why.trim_end().lines() {
            write!(f, "\n  | {line}")?;
        }
        if !self.advice.is_empty() {
            write!(f, "\n  = help: {}", self.advice)?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_reason_is_shown_and_no_empty_help() {
        let failure = Failure::environment("no QEMU", "first\nsecond\n", "");
        assert_eq!(failure.to_string(), "error: no QEMU\n  | first\n  | second");
        let failure = Failure::input("bad name `x`", "", "say `y`");
        assert_eq!(
            failure.to_string(),
            "error: bad name `x`\n  = help: say `y`"
        );
        assert_eq!(failure.outcome, Outcome::BadInput);
    }
}
