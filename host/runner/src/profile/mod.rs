//! The profiler on a run: what EL2 costs, counted by a plugin of QEMU.

mod instrument;
mod period;
mod program;

pub use bulkhead_profiler::{CpuKey, Period, Periods, Profile};
pub use instrument::{Attached, Instrument, build_plugin, configure, read_profile};
pub use period::period_of;
pub use program::{El2, Program};
