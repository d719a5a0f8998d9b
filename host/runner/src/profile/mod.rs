//! Plugins of QEMU on a run: what EL2 costs, counted by the profiler, and the pacer, without which the host's load
//! would show.

mod instrument;
mod pace;
mod period;
mod program;

pub use bulkhead_profiler::{CpuKey, Exits, Period, Periods, Profile};
pub use instrument::{Attached, Instrument, build_plugin, configure, read_profile};
pub use pace::Pace;
pub use period::{period_of, vms_of};
pub use program::{El2, ImageBytes, Program};
