//! Messages between the threads of pCPUs, and the SGI that makes a pCPU receive them (`bulkhead_core::sync::mailbox`).

use bulkhead_abi::plan::MAX_VCPUS;
use bulkhead_core::sync::Mailboxes;

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

static MAILBOXES: Mailboxes = Mailboxes::new();

/// The mailbox of a pCPU itself, which whichever of its threads runs receives.
pub const fn of_pcpu(index: usize) -> usize {
    Mailboxes::of_pcpu(index)
}

/// Sends a message to a vCPU (row of the plan), or to a pCPU ([`of_pcpu`]).
pub fn send(to: usize, message: u32) {
    if MAILBOXES.send(to, message) {
        let pcpu = if to < MAX_VCPUS {
            VCPU_LOCATION.of(to)
        } else {
            to.wrapping_sub(MAX_VCPUS)
        };
        gic::gppt::kick(pcpu);
    }
}

/// Whether there is a message for vCPU `id` (row of the plan).
pub fn has_mail(id: usize) -> bool {
    MAILBOXES.has_mail(id)
}

/// Takes the messages of a mailbox.
pub fn take(id: usize) -> u32 {
    MAILBOXES.take(id)
}
