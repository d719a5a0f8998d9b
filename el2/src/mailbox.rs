//! Messages between the threads of pCPUs: a word of bits for each, and an SGI to make its pCPU look (`docs/internals/locking.md`).

use core::sync::atomic::{AtomicU32, Ordering};

use bulkhead_abi::plan::{MAX_PCPUS, MAX_VCPUS};

use crate::hw::gic;
use crate::vcpu::Vcpu;
use crate::vm::VCPU_LOCATION;
use crate::{balance, devices, monitor, sched, timed};

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

fn take(id: usize) -> u32 {
    MAILBOXES
        .get(id)
        .filter(|mailbox| mailbox.load(Ordering::Acquire) != 0)
        .map_or(0, |mailbox| mailbox.swap(0, Ordering::AcqRel))
}

/// Does what this vCPU, and its pCPU, have been told.
pub fn receive(vcpu: &mut Vcpu) {
    let own = of_pcpu(vcpu.index);
    let mut messages = take(own);
    if vcpu.id != own {
        messages |= take(vcpu.id);
    }
    if messages & UART != 0 {
        devices::console_event(vcpu);
    }
    if messages & CONSOLE != 0 {
        devices::drain(vcpu, false);
    }
    if messages & TIMED != 0 {
        timed::look(vcpu);
    }
    if messages & MONITOR != 0 {
        monitor::answer(vcpu);
        devices::output_waits();
    }
    if messages & ARRIVAL != 0 {
        balance::migrate_in(vcpu);
    }
    if messages & SHARES != 0 {
        sched::apply_limits(vcpu);
    }
    if messages & POWER != 0 {
        vcpu.exit_work = true;
    }
}
