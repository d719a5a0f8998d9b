//! Budgets of events, for VMs that share the memory's bandwidth: who has used up its budget is held until its next period
//! ([`bulkhead_core::bandwidth`]). The counter runs while the vCPU has the pCPU; a vCPU with a budget is one with a full switch.

use bulkhead_core::devices::deadlines::Purpose;

use crate::deadlines;
use crate::hw::{pmu, timer};
use crate::pcpu::Pcpu;
use crate::vcpu::Vcpu;

/// Takes what the counter has off the meter.
fn charge(vcpu: &mut Vcpu) {
    let events = pmu::stop().wrapping_sub(vcpu.meter.preset());
    vcpu.meter.charge(events);
}

/// Counts on until the budget or the period ends.
fn go_on(vcpu: &Vcpu, pcpu: &mut Pcpu) {
    pcpu.set_deadline(Purpose::BANDWIDTH, Some(vcpu.meter.ends()));
    pmu::count_from(vcpu.meter.preset());
}

/// Part of a switch: the vCPU leaves the pCPU.
#[inline(never)]
pub fn put(vcpu: &mut Vcpu, pcpu: &mut Pcpu) {
    charge(vcpu);
    pcpu.set_deadline(Purpose::BANDWIDTH, None);
}

/// Part of a switch: the vCPU comes to the pCPU. One with nothing left comes only if it has moved: it is stopped at its first event.
#[inline(never)]
pub fn load(vcpu: &mut Vcpu, pcpu: &mut Pcpu) {
    vcpu.meter.refill(timer::now());
    go_on(vcpu, pcpu);
}

/// Looks at the budget of the vCPU whose turn it is, because a counter has overflowed or its period is over.
#[inline(never)]
pub fn look(vcpu: &mut Vcpu) {
    if !vcpu.meter.exists() {
        pmu::stop();
        return;
    }
    charge(vcpu);
    let now = timer::now();
    vcpu.meter.refill(now);
    let Some(pcpu) = vcpu.pcpu.take() else {
        return;
    };
    if vcpu.meter.is_spent() {
        pcpu.sched.hold(vcpu.slot, vcpu.meter.waits_until(), now);
        pcpu.look_again = true;
        vcpu.exit_work = true;
    }
    go_on(vcpu, pcpu);
    vcpu.pcpu = Some(pcpu);
    deadlines::set_timer(vcpu);
}
