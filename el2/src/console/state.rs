//! The state of the console, and the means by which other pCPUs tell the pCPU that drains it.

use core::sync::atomic::{AtomicU32, Ordering};

use bulkhead_core::console::keys::{Hold, Keys};
use bulkhead_core::console::mux::Mux;
use bulkhead_core::monitor::{Monitor, Shares};
use bulkhead_core::sync::{Awake, Said};

use crate::hw::uart::Uart;
use crate::mailbox;

/// What the monitor keeps of the CPU time of vCPUs.
static SHARES: Shares = Shares::new();
/// Whether the drainer knows that there is something to do, and looks again without being told.
pub(super) static AWAKE: Awake = Awake::new();
/// The VMs that have said something since the drainer looked, by their rows.
pub(super) static SAID: Said = Said::new();
/// The index of the pCPU that drains the console.
static DRAINER: AtomicU32 = AtomicU32::new(0);

/// Returns the index of the pCPU that drains the console.
pub fn drainer() -> usize {
    DRAINER.load(Ordering::Relaxed) as usize
}

/// Sets the pCPU that drains the console, during start-up.
pub fn set_drainer(index: usize) {
    DRAINER.store(index as u32, Ordering::Relaxed);
}

/// Tells the pCPU that drains the console that there is output of a VM. It drains in an exit of its own,
/// also if it is this pCPU.
#[inline(never)]
pub fn output_waits(vm: usize) {
    SAID.say(vm);
    wake_drainer();
}

/// Tells the pCPU that drains the console that it has something to look at which is no VM's output.
#[inline(never)]
pub fn wake_drainer() {
    if AWAKE.wake() {
        mailbox::send(mailbox::of_pcpu(drainer()), mailbox::CONSOLE);
    }
}

/// The state of the console, on the pCPU that drains it.
#[derive(Debug)]
pub struct Console {
    /// The board's UART.
    pub uart: Uart,
    /// The last turn was for what managers have typed.
    pub(super) typed: bool,
    /// A key of the monitor that waits for a manager to have given its order.
    pub(super) kept: Option<u8>,
    pub(super) mux: Mux,
    pub(super) keys: Keys,
    pub(super) hold: Hold,
    pub(super) monitor: Monitor,
    /// Whether the monitor prints a line before any VM prints another one.
    pub(super) monitor_first: bool,
    /// Whether the line that is being sent is the monitor's.
    pub(super) monitor_speaks: bool,
    /// Whether there was nothing to send and [`AWAKE`] was cleared. Output that was added just
    /// before that is found by a second look at all streams.
    pub(super) sleeps: bool,
    /// Whether there may be input that the next turn takes: it came early, or behind a command.
    pub(super) input: bool,
    /// Ticks from one turn to the next: 0, or what the servers of this pCPU count on.
    pub(super) pace: u64,
    /// The earliest time of the next turn.
    pub(super) not_before: u64,
    /// Whether the current look sends incomplete lines too.
    pub(super) flush: bool,
}

impl Console {
    /// Returns a console whose input goes to the first VM. `pace`: ticks from one turn of the drain
    /// to the next at least.
    pub const fn new(uart: Uart, pace: u64) -> Self {
        Self {
            uart,
            typed: false,
            kept: None,
            mux: Mux::new(),
            keys: Keys::new(0),
            hold: Hold::new(),
            monitor: Monitor::new(&SHARES),
            monitor_first: false,
            monitor_speaks: false,
            sleeps: false,
            input: false,
            pace,
            not_before: 0,
            flush: false,
        }
    }
}
