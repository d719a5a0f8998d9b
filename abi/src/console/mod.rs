//! The grammar of the console: the lines that EL2 and the service VM write and that tools read, each defined once with its
//! [`Sink`] side and its parser.
//!
//! Every line starts with a [`label`] that names its speaker, and says if it goes on with a line that was cut. Parsers get a line without label, escape sequences and line
//! end. They take any text, refuse with `None` what is not their line, and leave alone what stands behind what they know,
//! so that a tool reads the lines of an EL2 that says more.

#[macro_use]
mod sequence;

mod events;
mod field;
pub mod label;
mod served;
mod stats;
mod time;

pub use events::{
    ALL_STOPPED, ALL_STOPPED_LINE, Booted, Condition, InputLost, InputTo, Order, Ordered, Outcome,
    Refused, VmEnd,
};
pub use field::{Field, Hex, Name, Padded, Percent, Rest, Word};
pub use served::{DiskDid, Dropped, PortDid, REASONS};
pub use stats::{ClassRow, ExitsOf, FaultAt, HEADINGS, LAST_EXITS, LastExit, Totals};
pub use time::{Ran, ServiceTime, Turns, WAITS, Waits, waits};

/// Destination of a line that is written piece by piece. EL2's implementation cuts off what does not fit.
///
/// `core::fmt` has no place here: its tables and indirect calls would weigh more than all that EL2 says, and the
/// call-graph gate cannot see through them.
pub trait Sink {
    /// Appends text.
    fn text(&mut self, text: &str);
    /// Appends one byte.
    fn byte(&mut self, byte: u8);
    /// Appends a name of fixed width that ends at the first 0.
    fn name(&mut self, name: &[u8]);
    /// Appends a number in decimal digits.
    fn decimal(&mut self, value: u64);
    /// Appends a number in decimal digits, at least `width` characters wide, which is 20 at most.
    fn padded(&mut self, value: u64, width: usize);
    /// Appends a blank and then what [`Self::padded`] appends: a column of a table.
    fn cell(&mut self, value: u64, width: usize);
    /// Appends `0x` and the hexadecimal digits of a number, without leading zeros.
    fn hex(&mut self, value: u64);
    /// Appends blanks up to a column.
    fn column(&mut self, column: usize);
}
