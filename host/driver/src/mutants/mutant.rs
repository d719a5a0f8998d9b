//! A mutant: one piece of a source file replaced.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The kind of defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A statement is left out: a call, an assignment, a register write, a barrier.
    Statement,
    /// An instruction is left out, of a `.s` file or of a template of `asm!`.
    Instruction,
    /// A condition is negated.
    Condition,
    /// An operator is another one, or a method that is one.
    Operator,
    /// A number is one more, a truth value the other one.
    Constant,
    /// One of several bits that are put together is left out.
    Bit,
    /// A function returns at once.
    Return,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Statement => "statement",
            Self::Instruction => "instruction",
            Self::Condition => "condition",
            Self::Operator => "operator",
            Self::Constant => "constant",
            Self::Bit => "bit",
            Self::Return => "return",
        })
    }
}

/// Key of a mutant, the same as long as the code that it changes stays as it is, wherever that moves in its file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// The function, constant, label or macro of the assembler that it is in, with the types and modules around it.
    #[serde(rename = "in")]
    pub place: String,
    /// Text that is replaced, each run of white space as one space.
    pub was: String,
    /// Text that takes its place.
    pub now: String,
    /// Number of identical mutants before it in that place.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nth: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
const fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// A mutant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mutant {
    /// File, from the root of the repository.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Kind.
    pub kind: Kind,
    /// Name in its file.
    #[serde(flatten)]
    pub key: Key,
    /// The bytes that are replaced.
    #[serde(skip)]
    pub range: Range<usize>,
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            line,
            kind,
            key,
            ..
        } = self;
        let Key {
            place, was, now, ..
        } = key;
        write!(f, "{file}:{line}: in `{place}`, {kind}: ")?;
        match (was.is_empty(), now.is_empty()) {
            (true, _) => write!(f, "`{now}` at its start"),
            (_, true) => write!(f, "without `{was}`"),
            _ => write!(f, "`{was}` becomes `{now}`"),
        }
    }
}

impl Mutant {
    /// Returns the text of the file with the change. Lines keep their numbers, which are part of the program.
    pub fn apply(&self, text: &str) -> String {
        let (before, rest) = text.split_at(self.range.start);
        let (was, behind) = rest.split_at(self.range.len());
        let lines = "\n".repeat(was.matches('\n').count());
        format!("{before}{}{lines}{behind}", self.key.now)
    }
}

/// The mutants of a file, numbered where several are the same.
#[derive(Debug)]
pub struct Found<'a> {
    file: &'a str,
    text: &'a str,
    /// Mutants that were found so far.
    pub mutants: Vec<Mutant>,
}

impl<'a> Found<'a> {
    /// Starts without mutants.
    pub const fn of(file: &'a str, text: &'a str) -> Self {
        let mutants = Vec::new();
        Self {
            file,
            text,
            mutants,
        }
    }

    /// The file's text.
    pub const fn text(&self) -> &'a str {
        self.text
    }

    /// Adds a mutant.
    pub fn add(&mut self, kind: Kind, place: &str, range: Range<usize>, now: String) {
        let was = self.text.get(range.clone()).unwrap_or_default();
        let was = was.split_whitespace().collect::<Vec<_>>().join(" ");
        let before = self.text.get(..range.start).unwrap_or_default();
        let same = |other: &&Mutant| {
            let key = &other.key;
            (&*key.place, &*key.was, &*key.now) == (place, &*was, &*now)
        };
        let nth = self.mutants.iter().filter(same).count();
        let place = place.to_owned();
        self.mutants.push(Mutant {
            file: self.file.to_owned(),
            line: before.matches('\n').count() + 1,
            kind,
            key: Key {
                place,
                was,
                now,
                nth,
            },
            range,
        });
    }
}
