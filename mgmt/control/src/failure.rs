//! Failures of the management's programs: what failed, why, and what to do about it. They look as those of the host tool do,
//! and have its exit statuses.

use std::fmt;
use std::process::ExitCode;

/// How a program ends; the number is its exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did what was asked.
    Done = 0,
    /// EL2 refused, or what was waited for did not come.
    Failed = 1,
    /// The arguments are wrong.
    BadInput = 2,
    /// The environment lacks something: the port, the daemon, a right to open them.
    Environment = 3,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(outcome as u8)
    }
}

/// A failure. Its display is that of the host tool's failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// A word for programs, which stays the same: `control::busy`.
    pub code: &'static str,
    /// Exit status that goes with it.
    pub outcome: Outcome,
    /// Operation that failed, and its place: one line.
    pub what: String,
    /// Reason, in the words of EL2 or of the system call that refused; empty if there is no other.
    pub why: String,
    /// Advice to the user; empty when nothing sensible can be said.
    pub advice: String,
}

impl Failure {
    /// A failure because the environment lacks something.
    pub fn environment(
        code: &'static str,
        what: impl Into<String>,
        why: impl fmt::Display,
    ) -> Self {
        Self {
            code,
            outcome: Outcome::Environment,
            what: what.into(),
            why: why.to_string(),
            advice: String::new(),
        }
    }

    /// A failure because the arguments are wrong.
    pub fn input(code: &'static str, what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self {
            outcome: Outcome::BadInput,
            ..Self::environment(code, what, why)
        }
    }

    /// A failure of what was asked for.
    pub fn failed(code: &'static str, what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self {
            outcome: Outcome::Failed,
            ..Self::environment(code, what, why)
        }
    }

    /// The same with advice.
    pub fn advise(self, advice: impl Into<String>) -> Self {
        Self {
            advice: advice.into(),
            ..self
        }
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
    fn a_failure_says_what_why_and_what_to_do() {
        let failure = Failure::failed("control::x", "no", "one\ntwo\n").advise("try");
        assert_eq!(
            failure.to_string(),
            "error: no\n  | one\n  | two\n  = help: try"
        );
        assert_eq!(failure.outcome, Outcome::Failed);
        let plain = Failure::input("control::x", "no", "");
        assert_eq!(plain.to_string(), "error: no");
        assert_eq!(plain.outcome as u8, 2);
    }
}
