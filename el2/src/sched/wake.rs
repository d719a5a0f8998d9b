//! Wake-ups: what makes vCPUs of this pCPU ready that do not run.

use bulkhead_core::sched::Woken;
use bulkhead_core::vgic::Notify;

use crate::hw::cpu::Waits;
use crate::hw::timer;
use crate::pcpu::{Pcpu, RunSlot};
use crate::vcpu::Vcpu;
use crate::{deadlines, mailbox};

/// Returns the bit of a slot.
pub const fn bit(slot: usize) -> u32 {
    1u32.wrapping_shl(slot as u32)
}

/// Wakes the vCPUs of this pCPU in `slots`, one bit for each, which have something to do. The turn of
/// the running one may end earlier then: the caller sets EL2's timer.
#[inline(never)]
pub fn wake_all(vcpu: &mut Vcpu, slots: u32, now: u64) {
    let Some(pcpu) = vcpu.pcpu.as_deref_mut() else {
        return;
    };
    match pcpu.sched.wake_and_keep(slots, now) {
        Woken::Nothing => {}
        Woken::Keeps(until) => {
            pcpu.until = until;
            set_traps(pcpu, Waits::new(true, true));
        }
        Woken::Looks => {
            pcpu.look_again = true;
            vcpu.exit_work = true;
        }
    }
}

/// Returns the slots of the other vCPUs of this pCPU for which `has_pending` holds, one bit for
/// each.
fn slots(vcpu: &Vcpu, has_pending: impl Fn(&RunSlot) -> bool) -> u32 {
    let Some(pcpu) = vcpu.pcpu.as_deref() else {
        return 0;
    };
    let (mut found, mut bit) = (0, 1u32);
    for run_slot in pcpu.slots() {
        if run_slot.as_ref().is_some_and(&has_pending) {
            found |= bit;
        }
        bit <<= 1;
    }
    found & !self::bit(vcpu.slot)
}

/// Marks the vCPUs in `found`, which do not run, as having something pending, and wakes them.
#[inline(always)]
fn mark_pending(vcpu: &mut Vcpu, found: u32) {
    if let Some(pcpu) = vcpu.pcpu.as_deref_mut() {
        pcpu.pending |= found;
    }
    if found != 0 {
        wake_all(vcpu, found, timer::now());
        deadlines::set_timer(vcpu);
    }
}

/// Whether EL2's timer has fired for the end of the turn only.
#[inline(always)]
pub fn is_over(vcpu: &Vcpu, now: u64) -> bool {
    let pcpu = vcpu.pcpu.as_deref();
    pcpu.is_some_and(|pcpu| now < pcpu.rest && now >= pcpu.until)
}

/// Handles EL2's timer: wakes the vCPUs whose time has come, and ends the turn if it is over.
/// `true`: the caller goes on to [`reschedule`], which sets the timer.
#[inline(always)]
pub fn timer_fired(vcpu: &mut Vcpu, now: u64) -> bool {
    if vcpu.pcpu.as_deref().is_some_and(|pcpu| pcpu.soonest <= now) {
        wake_due(vcpu, now);
    }
    let Some(pcpu) = vcpu.pcpu.as_deref_mut() else {
        return false;
    };
    if now >= pcpu.until {
        pcpu.until = u64::MAX;
        pcpu.look_again = true;
        vcpu.exit_work = true;
    }
    pcpu.look_again
}

#[inline(never)]
fn wake_due(vcpu: &mut Vcpu, now: u64) {
    if let Some(pcpu) = vcpu.pcpu.as_deref_mut() {
        let found = pcpu.take_wakes(now);
        wake_all(vcpu, found, now);
    }
}

/// Handles the SGI of a sibling for vCPUs of this pCPU that do not run.
pub fn on_sibling_sgi(vcpu: &mut Vcpu) {
    let found = slots(vcpu, |run_slot| {
        let vm = run_slot.vm();
        vm.is_some_and(|vm| vm.dist.calls(run_slot.number.into()))
    });
    mark_pending(vcpu, found);
}

/// Notifies the one sibling in `whom`, so that it looks at its interrupts. If it is on this pCPU, it does
/// so when it runs, and is woken for that: no SGI has to come back for it.
#[inline(never)]
pub fn notify_one(vcpu: &mut Vcpu, whom: Notify) {
    // The rows of a VM's vCPUs follow each other.
    let number = whom.0.trailing_zeros() as usize;
    let id = vcpu.id.wrapping_sub(vcpu.number).wrapping_add(number);
    match vcpu.pcpu.as_deref().and_then(|pcpu| pcpu.slot_of(id)) {
        None => vcpu.notify(whom),
        Some(slot) => mark_pending(vcpu, bit(slot)),
    }
}

/// Wakes the vCPUs of this pCPU that do not run and have a message.
pub fn on_mail(vcpu: &mut Vcpu) {
    let found = slots(vcpu, |run_slot| mailbox::has_mail(run_slot.id.into()));
    mark_pending(vcpu, found);
}

/// Handles a physical SPI whose priority has been dropped, if it belongs to a vCPU of this pCPU
/// that does not run: wakes that vCPU. Returns whether there was such a vCPU.
pub fn on_spi(vcpu: &mut Vcpu, pintid: u32) -> bool {
    let found = slots(vcpu, |run_slot| {
        let vm = run_slot.vm();
        vm.is_some_and(|vm| vm.vintid_of(pintid).is_some())
    });
    let slot = found.trailing_zeros() as usize;
    let Some(run_slot) = vcpu
        .pcpu
        .as_deref_mut()
        .and_then(|pcpu| pcpu.run_slot(slot))
    else {
        return false;
    };
    let Some(vintid) = run_slot.vm().and_then(|vm| vm.vintid_of(pintid)) else {
        return false;
    };
    if let Some(word) = run_slot.arrived.get_mut((vintid / 32) as usize) {
        *word |= 1 << (vintid % 32);
        run_slot.has_arrived = true;
    }
    mark_pending(vcpu, bit(slot));
    true
}

/// Sets whether WFI and WFE trap.
#[inline(never)]
pub fn set_traps(pcpu: &mut Pcpu, traps: Waits) {
    if traps != pcpu.traps {
        pcpu.traps = traps;
        traps.set();
    }
}
