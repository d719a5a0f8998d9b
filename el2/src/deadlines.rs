//! EL2's timer on this pCPU and the deadlines that it serves: those of the running vCPU, those of
//! the pCPU, and the end of the turn.

use bulkhead_core::devices::deadlines::{Deadlines, Purpose};

use crate::hw::timer;
use crate::pcpu::Pcpu;
use crate::vcpu::Vcpu;

/// Sets a deadline (physical counter) or clears it. Its purpose says whether it is the pCPU's or
/// the vCPU's, but for [`Purpose::BANDWIDTH`], which is set in a switch.
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
        set_timer(vcpu);
    }
}

/// Arms EL2's timer for the next deadline of the running vCPU, of the vCPUs that do not run, and of
/// the pCPU.
pub fn set_timer(vcpu: &mut Vcpu) {
    if let Some(pcpu) = vcpu.pcpu.take() {
        timer::set(next_deadline(vcpu, pcpu));
        vcpu.pcpu = Some(pcpu);
    }
}

/// Returns when EL2's timer is to fire next (physical counter).
#[inline(always)]
pub fn next_deadline(vcpu: &Vcpu, pcpu: &mut Pcpu) -> u64 {
    let next = |deadlines: &Deadlines| deadlines.next().unwrap_or(u64::MAX);
    pcpu.rest = next(&vcpu.deadlines).min(pcpu.due);
    pcpu.rest.min(pcpu.until)
}
