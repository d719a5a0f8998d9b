//! EL2's timer on this pCPU and the deadlines that it serves.

use bulkhead_core::deadlines::Purpose;

use crate::hw::timer;
use crate::pcpu::Pcpu;
use crate::{devices, timed};

/// Sets a deadline (physical counter) or takes it away.
pub fn set(pcpu: &mut Pcpu, purpose: Purpose, at: Option<u64>) {
    if pcpu.deadlines.set(purpose, at) {
        timer::set(pcpu.deadlines.next());
    }
}

/// Serves the deadlines that have come, each once at most; then EL2's timer is set for the next one.
pub fn serve(pcpu: &mut Pcpu) {
    for _ in 0..Purpose::COUNT {
        let Some(due) = pcpu.deadlines.take(timer::now()) else {
            break;
        };
        match due {
            Purpose::Flush => devices::drain(pcpu, true),
            Purpose::Monitor => devices::drain(pcpu, false),
            Purpose::PhysicalTimer => timed::follow_physical(pcpu),
            Purpose::Watchdog | Purpose::Alarm => timed::look(pcpu),
        }
    }
    timer::set(pcpu.deadlines.next());
}
