//! EL2's timer on this pCPU and the deadlines that it serves: the vCPU's own, those of the pCPU, and the ends of turns.

use bulkhead_core::devices::deadlines::Purpose;

use crate::hw::timer;
use crate::vcpu::Vcpu;
use crate::{balance, devices, doorbell, sched, timed};

/// Sets a deadline (physical counter) or takes it away: the pCPU's or the vCPU's, as its purpose says.
pub fn set(vcpu: &mut Vcpu, purpose: Purpose, at: Option<u64>) {
    let is_other = match purpose {
        Purpose::Flush | Purpose::Monitor | Purpose::Balance => vcpu
            .pcpu
            .as_deref_mut()
            .is_some_and(|pcpu| pcpu.set_deadline(purpose, at)),
        Purpose::PhysicalTimer | Purpose::Watchdog | Purpose::Alarm | Purpose::Doorbell => {
            vcpu.deadlines.set(purpose, at)
        }
    };
    if is_other {
        sched::set_timer(vcpu);
    }
}

/// Serves the deadlines that have come, each once at most; then EL2's timer is set for the next one.
#[inline(always)]
pub fn serve(vcpu: &mut Vcpu, now: u64) {
    serve_own(vcpu, now);
    if vcpu
        .pcpu
        .as_deref()
        .is_some_and(|pcpu| pcpu.has_deadline(now))
    {
        serve_pcpu(vcpu, now);
    }
    if !sched::timer_fired(vcpu, now) {
        sched::set_timer(vcpu);
    }
}

#[inline(never)]
fn serve_pcpu(vcpu: &mut Vcpu, now: u64) {
    for _ in 0..Purpose::COUNT {
        let Some(pcpu) = vcpu.pcpu.as_deref_mut() else {
            break;
        };
        // What is set meanwhile to come at once has an exit of its own.
        match pcpu.take_deadline(now) {
            Some(Purpose::Flush) => devices::drain(vcpu, true),
            Some(Purpose::Balance) => balance::look(vcpu),
            Some(_) => devices::drain(vcpu, false),
            None => break,
        }
    }
}

/// Serves those of the vCPU.
#[inline(always)]
pub fn serve_own(vcpu: &mut Vcpu, now: u64) {
    if vcpu.deadlines.is_due(now) {
        serve_vcpu(vcpu);
    }
}

#[inline(never)]
fn serve_vcpu(vcpu: &mut Vcpu) {
    for _ in 0..Purpose::COUNT {
        match vcpu.deadlines.take(timer::now()) {
            Some(Purpose::PhysicalTimer) => timed::follow_physical(vcpu),
            Some(Purpose::Doorbell) => doorbell::look(vcpu),
            Some(_) => timed::look(vcpu),
            None => break,
        }
    }
}
