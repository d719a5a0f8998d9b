//! The sleep of a vCPU, from its WFI to what runs meanwhile.

use super::{Why, set_turn, switch_to_next};
use crate::deadlines;
use crate::hw::{gic, sysreg as reg, timer};
use crate::pcpu::Pcpu;
use crate::vcpu::Vcpu;

/// Handles WFI: blocks unless an interrupt is already pending for the guest.
pub fn wait(vcpu: &mut Vcpu) {
    let called = vcpu.vgic.may_be_called(&vcpu.gic) && {
        let gate = gic::gate();
        let below = gate.mask.min(gate.running);
        vcpu.vgic.is_called(&vcpu.gic, gate.groups as u32, below)
    };
    if !called
        && let Some(pcpu) = vcpu.pcpu.take()
        && let Some(why) = sleep_here(vcpu, pcpu)
    {
        switch_to_next(vcpu, why);
    }
}

/// Blocks the vCPU. Where nobody else is ready, waits for the next interrupt first: its registers stay
/// in the hardware, and if the interrupt is one that its guest takes, nothing has to be switched.
/// Every other interrupt is for the idle thread, which runs as if it had waited itself. Returns why the
/// guest does not go on, if it does not.
#[inline(always)]
fn sleep_here(vcpu: &mut Vcpu, pcpu: &'static mut Pcpu) -> Option<Why> {
    let from = timer::now();
    let (mut goes_on, mut now) = (None, from);
    let mut is_woken = false;
    if pcpu.sched.is_last()
        && !pcpu.look_again
        && !pcpu.moves.are_under_way()
        && !vcpu.group0
        && vcpu.gppt.is_none()
    {
        let left = reg::cycles();
        // Its turn does not end while it sleeps.
        set_turn_end(vcpu, pcpu, u64::MAX);
        gic::el2_wait(vcpu.index, false);
        is_woken = gic::most_urgent() == vcpu.vtimer_intid && vcpu.vgic.vtimer_entry() != 0;
        now = timer::now();
        if is_woken {
            goes_on = pcpu.sched.slept(from, now);
            vcpu.stats.was_away(left, reg::cycles());
        }
    }
    let mut why = None;
    if let Some(until) = goes_on {
        set_turn_end(vcpu, pcpu, until);
    } else {
        why = Some(Why::Look(now));
        if !is_woken {
            if let Some(turn) = pcpu.sched.block_for_heir(from) {
                why = Some(Why::Sleeps(set_turn(pcpu, turn)));
            } else {
                pcpu.sched.block(from);
            }
        }
    }
    vcpu.pcpu = Some(pcpu);
    why
}

/// Sets the end of the turn of the running vCPU, and EL2's timer.
#[inline(always)]
fn set_turn_end(vcpu: &Vcpu, pcpu: &mut Pcpu, until: u64) {
    if pcpu.until != until {
        change_turn_end(vcpu, pcpu, until);
    }
}

#[inline(never)]
fn change_turn_end(vcpu: &Vcpu, pcpu: &mut Pcpu, until: u64) {
    pcpu.until = until;
    timer::set(deadlines::next_deadline(vcpu, pcpu));
}
