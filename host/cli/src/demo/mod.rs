//! The demo: Debian's Linux hard at work, a 1 kHz control loop, two VMs that share a CPU, and a real-time Linux under
//! cyclictest, side by side on one board.
//!
//! It runs on QEMU's instruction clock. On the host's clock a shared machine takes the CPU away from
//! the emulator for longer than a period now and then, and the loop would lose periods by no fault of
//! the hypervisor. On the instruction clock time stands still while the emulator does not run, so
//! every lost period would be the system's own.
//!
//! One effect of the emulator remains: its CPUs take turns of up to 100 ms divided by their number, and time
//! passes for all of them during each turn. A turn ends when a timer is due, and then the first CPU is
//! asked first. So the loop has pCPU 0. On pCPU 1 it waits for Linux's turn to end: of 14735 periods 425
//! were lost so, with lateness up to 24.8 ms, while EL2 spent the same 65 instructions on each.

/// An instruction of the board takes so many nanoseconds, as a power of two.
pub const SHIFT: u8 = 3;

mod count;
mod footer;
mod progress;
mod summary;
mod view;

pub use count::El2Count;
pub use progress::{Control, Latency, Phase, Progress};
pub use summary::{El2Periods, Summary};
pub use view::Screen;
