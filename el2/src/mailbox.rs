//! Messages between the threads of pCPUs, and the SGI that makes a pCPU receive them
//! (`bulkhead_core::sync::mailbox`).

use bulkhead_core::sync::{Kick, Mailboxes};

use crate::hw::gic;
use crate::vm::VCPU_LOCATION;

/// The console has something to drain. To the pCPU that drains it.
pub const CONSOLE: u32 = 1;
/// The emulated UART of the VM has input, or room for output again.
pub const UART: u32 = 2;
/// A report has been printed; another may follow.
pub const TURN: u32 = 4;
/// The power state of the VM or of the vCPU has changed.
pub const POWER: u32 = 8;
/// The clock or the watchdog of the VM has another deadline. To its vCPU 0.
pub const TIMED: u32 = 16;
/// The monitor asks about the vCPU, or asks a pCPU about one of its vCPUs.
pub const MONITOR: u32 = 32;
/// The limits of vCPUs of the pCPU have changed. To the pCPU.
pub const SHARES: u32 = 64;
/// A vCPU has migrated from another pCPU. To the pCPU.
pub const ARRIVAL: u32 = 128;

/// A device has something to do. To a service thread, which wakes up and looks. It gets no other message.
const SERVICE: u32 = 256;

/// A counter of the vCPU had overflowed when its turn ended. From itself.
pub const OVERFLOW: u32 = 512;

static MAILBOXES: Mailboxes = Mailboxes::new();

/// The SGI that makes a pCPU receive its messages.
struct Sgi;

impl Kick for Sgi {
    #[inline(always)]
    fn kick(&self, pcpu: usize) {
        gic::gppt::kick(pcpu);
    }
}

/// Returns the mailbox of a pCPU itself, whose messages are received by whichever of its threads
/// runs.
pub const fn of_pcpu(index: usize) -> usize {
    Mailboxes::of_pcpu(index)
}

/// Sends a message to a vCPU (row of the plan), or to a pCPU ([`of_pcpu`]).
pub fn send(to: usize, message: u32) {
    MAILBOXES.post(to, message, &VCPU_LOCATION, &Sgi);
}

/// Tells a service thread (number among the vCPUs' rows), which stays on `pcpu`, unless an SPI replaces the SGI for that. Returns `false` if so:
/// the caller calls the pCPU by [`call_service`], and has no stack frame on the path of SGIs. The pCPU has no GPPT VM: a service thread is where no vCPU
/// is pinned (`service-placement`).
#[inline(always)]
pub fn send_to_service(to: usize, pcpu: usize) -> bool {
    MAILBOXES.put_only(to, SERVICE);
    gic::send_sgi(gic::KICK, pcpu)
}

/// Calls the pCPU of a service thread that has a message, as every pCPU is called.
pub fn call_service(pcpu: usize) {
    gic::gppt::kick(pcpu);
}

/// Whether there is a message for vCPU `id` (row of the plan).
pub fn has_mail(id: usize) -> bool {
    MAILBOXES.has_mail(id)
}

/// Takes the messages from a mailbox.
pub fn take(id: usize) -> u32 {
    MAILBOXES.take(id)
}
