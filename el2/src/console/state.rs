//! State of the console, and how others tell the pCPU that drains it.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use bulkhead_core::console::keys::Keys;
use bulkhead_core::console::mux::Mux;
use bulkhead_core::monitor::Monitor;

use crate::hw::uart::Uart;
use crate::mailbox;
use crate::orders::ManageVms;

/// The drainer knows that there is something to do, and will look again by itself.
pub(super) static AWAKE: AtomicBool = AtomicBool::new(false);
/// Index of the pCPU that drains the console.
static DRAINER: AtomicU32 = AtomicU32::new(0);

/// Marks that there is output; `true` if the drainer must be told.
fn wake() -> bool {
    // What was added must be seen by a drainer whose mark is not: see `Console::drain`.
    fence(Ordering::SeqCst);
    !AWAKE.swap(true, Ordering::AcqRel)
}

/// The pCPU that drains the console.
pub fn drainer() -> usize {
    DRAINER.load(Ordering::Relaxed) as usize
}

/// Start-up says which pCPU drains the console.
pub fn set_drainer(index: usize) {
    DRAINER.store(index as u32, Ordering::Relaxed);
}

/// There is something for the pCPU that drains the console. It does so in an exit of its own, also if
/// it is this one.
pub fn output_waits() {
    if wake() {
        mailbox::send(mailbox::of_pcpu(drainer()), mailbox::CONSOLE);
    }
}

/// State of the console, on the pCPU that drains it.
#[derive(Debug)]
pub struct Console {
    /// The board's UART.
    pub uart: Uart,
    pub(super) manage: ManageVms,
    pub(super) mux: Mux,
    pub(super) keys: Keys,
    pub(super) monitor: Monitor,
    /// The monitor has a line before any VM has another one.
    pub(super) monitor_first: bool,
    /// The line that is going out is the monitor's.
    pub(super) monitor_speaks: bool,
    /// Nobody had anything to say, and [`AWAKE`] says so; what was added just before that is seen by a second look at all.
    pub(super) sleeps: bool,
    /// The look that is under way says parts of lines, too.
    pub(super) flush: bool,
}

impl Console {
    /// Input goes to the first VM.
    pub const fn new(uart: Uart, manage: ManageVms) -> Self {
        Self {
            uart,
            manage,
            mux: Mux::new(),
            keys: Keys::new(0),
            monitor: Monitor::new(),
            monitor_first: false,
            monitor_speaks: false,
            sleeps: false,
            flush: false,
        }
    }
}
