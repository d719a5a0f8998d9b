//! Messages between pCPUs: a word of bits for each, and an SGI to make it look (`docs/locking.md`).

use core::sync::atomic::{AtomicU32, Ordering};

use bulkhead_abi::plan::MAX_PCPUS;

use crate::hw::gic;

/// The console has something to drain. For the pCPU that drains it.
pub const CONSOLE: u32 = 1;
/// The emulated UART of the VM has input, or room again.
pub const UART: u32 = 2;
/// A report was said; another may be.
pub const TURN: u32 = 4;
/// The state of the VM, or of the vCPU, has changed.
pub const POWER: u32 = 8;
/// The clock or the watchdog of the VM has another deadline. For the pCPU of its vCPU 0.
pub const TIMED: u32 = 16;
/// The monitor asks about the vCPU.
pub const MONITOR: u32 = 32;

static MAILBOXES: [AtomicU32; MAX_PCPUS] = [const { AtomicU32::new(0) }; MAX_PCPUS];

/// Tells a pCPU something.
pub fn send(to: usize, message: u32) {
    let Some(mailbox) = MAILBOXES.get(to) else {
        return;
    };
    // If the bit was set, its SGI is still to be taken: nothing more is needed.
    if mailbox.fetch_or(message, Ordering::AcqRel) & message == 0 {
        gic::send(gic::KICK, to);
    }
}

/// Takes what has been told to this pCPU.
pub fn take(own: usize) -> u32 {
    MAILBOXES
        .get(own)
        .map_or(0, |mailbox| mailbox.swap(0, Ordering::AcqRel))
}
