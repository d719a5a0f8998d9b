//! Messages between the threads of pCPUs: a word of bits for each, and an SGI to make its pCPU look (`docs/internals/locking.md`).

use core::sync::atomic::{AtomicU32, Ordering};

use bulkhead_abi::plan::{MAX_PCPUS, MAX_VCPUS};

use crate::hw::gic;
use crate::vm::VCPU_LOCATION;

/// The console has something to drain. For the pCPU that drains it.
pub const CONSOLE: u32 = 1;
/// The emulated UART of the VM has input, or room again.
pub const UART: u32 = 2;
/// A report was said; another may be.
pub const TURN: u32 = 4;
/// The state of the VM, or of the vCPU, has changed.
pub const POWER: u32 = 8;
/// The clock or the watchdog of the VM has another deadline. For its vCPU 0.
pub const TIMED: u32 = 16;
/// The monitor asks about the vCPU, or the pCPU about one of its own.
pub const MONITOR: u32 = 32;
/// What vCPUs may have of the pCPU has changed. For the pCPU.
pub const SHARES: u32 = 64;
/// A vCPU comes from another pCPU. For the pCPU.
pub const ARRIVAL: u32 = 128;

/// vCPUs by their rows in the plan, then pCPUs.
static MAILBOXES: [AtomicU32; MAX_VCPUS + MAX_PCPUS] =
    [const { AtomicU32::new(0) }; MAX_VCPUS + MAX_PCPUS];

/// The mailbox of a pCPU itself, which whichever of its threads runs opens.
pub const fn of_pcpu(index: usize) -> usize {
    MAX_VCPUS.wrapping_add(index)
}

/// Tells a vCPU (row of the plan), or a pCPU ([`of_pcpu`]), something.
pub fn send(to: usize, message: u32) {
    let Some(mailbox) = MAILBOXES.get(to) else {
        return;
    };
    // If the bit was set, its SGI is still to be taken: nothing more is needed.
    if mailbox.fetch_or(message, Ordering::AcqRel) & message == 0 {
        let pcpu = if to < MAX_VCPUS {
            VCPU_LOCATION.of(to)
        } else {
            to.wrapping_sub(MAX_VCPUS)
        };
        gic::gppt::kick(pcpu);
    }
}

/// There is something for vCPU `id` (row of the plan).
pub fn has_mail(id: usize) -> bool {
    MAILBOXES
        .get(id)
        .is_some_and(|mailbox| mailbox.load(Ordering::Acquire) != 0)
}

/// Takes the messages of a mailbox.
pub fn take(id: usize) -> u32 {
    MAILBOXES
        .get(id)
        .filter(|mailbox| mailbox.load(Ordering::Acquire) != 0)
        .map_or(0, |mailbox| mailbox.swap(0, Ordering::AcqRel))
}
