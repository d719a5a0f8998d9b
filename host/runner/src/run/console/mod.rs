//! Output of a running system: the multiplexed console as lines with a speaker, and the reports of
//! EL2 as values. Pure: bytes in, values out.
//!
//! The wire form: every line starts with `[name] `, the label in an SGR colour; EL2's own lines carry
//! the label `[el2]`.

mod line;
mod output;
mod report;
mod served;
mod stats;

pub use line::{ConsoleLine, Speaker, Splitter, strip_escapes};
pub use output::Output;
pub use report::{Event, Transcript, VmEnd};
pub use served::{DiskTraffic, PortTraffic, Served};
pub use stats::{ClassRow, CpuTime, ExitTable, InService, Waits};
