//! The verdict, as a value and as text.

use std::fmt;

use crate::graph::Defect;

/// One function on a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// Address of the call of the next one, or of the defect.
    pub at: Option<u64>,
    /// Source lines of that place, innermost inlined function first; empty without debug information.
    pub lines: Vec<String>,
}

/// A function on the deepest path of the stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its name.
    pub name: String,
    /// Bytes that it holds there.
    pub bytes: i64,
}

/// A reason to refuse the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A panic can be reached.
    Panic {
        /// From a root to the panic function.
        path: Vec<Step>,
    },
    /// An instruction that no gate lets pass can be reached.
    Code {
        /// The defect.
        defect: Defect,
        /// From a root to the function with the instruction.
        path: Vec<Step>,
    },
    /// Code that stays calls code that does not.
    Unmapped {
        /// The function that is called.
        name: String,
        /// From a root to the caller.
        path: Vec<Step>,
    },
    /// Functions call each other in a circle.
    Recursion {
        /// Names, the first again at the end.
        cycle: Vec<String>,
    },
    /// The deepest path takes more stack than there is.
    Stack {
        /// Bytes of the deepest path.
        bytes: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The image contains an allocator.
    Allocator {
        /// A symbol of it.
        name: String,
    },
    /// The image contains what it has to do without.
    Absent {
        /// A symbol of it.
        name: String,
    },
}

impl Finding {
    /// Rank of the finding in a report: the one that explains most comes first.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Self::Panic { .. } => 0,
            Self::Code { .. } => 1,
            Self::Unmapped { .. } => 2,
            Self::Recursion { .. } => 3,
            Self::Stack { .. } => 4,
            Self::Allocator { .. } => 5,
            Self::Absent { .. } => 6,
        }
    }
}

/// Result of the gates.
#[derive(Clone, Debug)]
pub struct Report {
    /// Functions that can be reached.
    pub functions: usize,
    /// The deepest path of stack frames; empty when recursion makes it endless.
    pub stack: Vec<Frame>,
    /// Bytes of that path.
    pub stack_bytes: u64,
    /// Bytes allowed.
    pub stack_limit: u64,
    /// Reasons to refuse the image.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether the image passes every gate.
    pub fn passed(&self) -> bool {
        self.findings.is_empty()
    }
}

fn write_path(f: &mut fmt::Formatter<'_>, path: &[Step]) -> fmt::Result {
    for (depth, step) in path.iter().enumerate() {
        let arrow = if depth == 0 { "from" } else { "  ->" };
        writeln!(f, "    {arrow} {}", step.name)?;
        for line in &step.lines {
            writeln!(f, "           at {line}")?;
        }
        if let (Some(at), true) = (step.at, step.lines.is_empty()) {
            writeln!(f, "           at {at:#x}")?;
        }
    }
    Ok(())
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IndirectCall => "indirect call (blr): its callees can't be judged",
            Self::IndirectJump => "indirect jump (br) that is no jump table of its function",
            Self::Trap => "trap instruction (brk, hlt or udf)",
            Self::OutsideCode => "control leaves the code of the image",
            Self::StackPointer => "the stack pointer is set from a value that is not followed",
            Self::StackGrowth => "the stack grows in a loop",
        })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panic { path } => {
                let name = path.last().map_or("?", |step| &step.name);
                writeln!(f, "a panic can be reached: {name}")?;
                write_path(f, path)
            }
            Self::Code { defect, path } => {
                writeln!(f, "{defect}")?;
                write_path(f, path)
            }
            Self::Unmapped { name, path } => {
                writeln!(f, "code that stays calls code that is unmapped: {name}")?;
                write_path(f, path)
            }
            Self::Recursion { cycle } => writeln!(f, "recursion: {}", cycle.join(" -> ")),
            Self::Stack { bytes, limit } => {
                writeln!(
                    f,
                    "the deepest stack takes {bytes} bytes; there are {limit}"
                )
            }
            Self::Allocator { name } => writeln!(f, "the image contains an allocator: {name}"),
            Self::Absent { name } => {
                writeln!(f, "the image contains what it has to do without: {name}")
            }
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "refused: {finding}")?;
        }
        writeln!(
            f,
            "{} functions can be reached from the vectors",
            self.functions
        )?;
        if !self.stack.is_empty() {
            writeln!(
                f,
                "deepest stack: {} of {} bytes",
                self.stack_bytes, self.stack_limit
            )?;
            for frame in self.stack.iter().filter(|frame| frame.bytes != 0) {
                writeln!(f, "  {:>6} {}", frame.bytes, frame.name)?;
            }
        }
        let verdict = if self.passed() {
            "passed"
        } else {
            "not passed"
        };
        writeln!(f, "gates {verdict}: {} findings", self.findings.len())
    }
}
