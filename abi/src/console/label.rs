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

/// Mark behind the name: what follows belongs to the line of the VM before, which another speaker cut. No name
/// contains it.
const GOES_ON: &str = "+";

/// Writes the label of a VM. `colour`: the last digit of an SGR foreground colour. `goes_on`: the VM's line before
/// this one was cut, and this is what follows.
#[inline(always)]
pub fn write(to: &mut impl Sink, colour: u8, name: &[u8], goes_on: bool) {
    to.text("\x1b[3");
    to.byte(colour);
    to.text("m[");
    to.name(name);
    if goes_on {
        to.text(GOES_ON);
    }
    to.text("]\x1b[0m ");
}

/// A line with its label taken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Labelled<'a> {
    /// The name in the label.
    pub name: &'a str,
    /// Whether this goes on with the speaker's line before.
    pub goes_on: bool,
    /// Text behind the label.
    pub text: &'a str,
}

/// Takes the label off a line; `None` if the line has none.
pub fn parse(line: &str) -> Option<Labelled<'_>> {
    let (name, rest) = line.strip_prefix('[')?.split_once(']')?;
    let whole = name.strip_suffix(GOES_ON);
    let goes_on = whole.is_some();
    let name = whole.unwrap_or(name);
    is_name(name).then(|| Labelled {
        name,
        goes_on,
        text: rest.strip_prefix(' ').unwrap_or(rest),
    })
}

/// Names that the planner admits start with a letter; a kernel's time stamp `[    0.1]` does not.
fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}
