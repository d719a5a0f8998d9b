//! The label of a line: its speaker in brackets.
//!
//! EL2's own lines and the monitor's have plain labels; that of a VM is coloured by an SGR sequence, so that the
//! parser gets a line from which escape sequences have been taken.

use super::Sink;

macro_rules! el2 {
    () => {
        "[el2] "
    };
}

/// Label of EL2's lines.
pub const EL2: &str = el2!();
/// [`EL2`] on a line of its own, where another one may not have ended.
pub const EL2_ANEW: &str = concat!("\r\n", el2!());
/// Label of the monitor's lines.
pub const MONITOR: &str = "[monitor] ";

/// Name in [`EL2`], which no VM may have.
pub const EL2_NAME: &str = "el2";
/// Name in [`MONITOR`], which no VM may have.
pub const MONITOR_NAME: &str = "monitor";

/// Writes the label of a VM. `colour`: the last digit of an SGR foreground colour.
#[inline(always)]
pub fn write(to: &mut impl Sink, colour: u8, name: &[u8]) {
    to.text("\x1b[3");
    to.byte(colour);
    to.text("m[");
    to.name(name);
    to.text("]\x1b[0m ");
}

/// The name in the label of a line and what follows it; `None` if the line has no label.
pub fn parse(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.strip_prefix('[')?.split_once(']')?;
    is_name(name).then(|| (name, rest.strip_prefix(' ').unwrap_or(rest)))
}

/// Names that the planner admits start with a letter; a kernel's time stamp `[    0.1]` does not.
fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}
