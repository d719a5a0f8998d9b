//! Delivery of what has arrived for a vCPU and its pCPU: messages, and deadlines of EL2's timer.

use bulkhead_core::devices::deadlines::Purpose;

use crate::console::state::wake_drainer;
use crate::hw::timer;
use crate::profile::{IO, MONITOR, SHARED};
use crate::vcpu::Vcpu;
use crate::{
    balance, bandwidth, deadlines, devices, doorbell, mailbox, monitor, pmu, sched, timed,
};

/// Handles the messages to this vCPU and to its pCPU.
#[inline(always)]
pub fn mail(vcpu: &mut Vcpu) {
    let own = mailbox::of_pcpu(vcpu.index);
    let mut messages = mailbox::take(own);
    if vcpu.id != own {
        messages |= mailbox::take(vcpu.id);
    }
    if messages & mailbox::UART != 0 {
        devices::console_event(vcpu);
    }
    if messages & mailbox::CONSOLE != 0 {
        devices::drain(vcpu, false, false);
    }
    if messages & mailbox::TIMED != 0 {
        timed::look(vcpu);
    }
    if MONITOR && messages & mailbox::MONITOR != 0 {
        monitor::answer(vcpu);
        wake_drainer();
    }
    if SHARED && messages & mailbox::ARRIVAL != 0 && balance::migrate_in(vcpu) {
        // The vCPU's limits may have changed during the migration, and the monitor may have asked
        // the pCPU that the vCPU has left.
        sched::apply_limits(vcpu);
        monitor::answer(vcpu);
    }
    if SHARED && messages & mailbox::SHARES != 0 {
        sched::apply_limits(vcpu);
    }
    if IO && messages & mailbox::OVERFLOW != 0 {
        pmu::follow(vcpu);
    }
    if messages & mailbox::POWER != 0 {
        vcpu.exit_work = true;
    }
}

/// Serves the deadlines that have passed, each once at most, and then sets EL2's timer for the next
/// one.
#[inline(always)]
pub fn due(vcpu: &mut Vcpu, now: u64) {
    due_of_vcpu(vcpu, now);
    if vcpu
        .pcpu
        .as_deref()
        .is_some_and(|pcpu| pcpu.has_deadline(now))
    {
        serve_pcpu(vcpu, now);
    }
    if !sched::timer_fired(vcpu, now) {
        deadlines::set_timer(vcpu);
    }
}

/// Serves the deadlines of the pCPU. The two of the console are served by one turn of its drain:
/// two in one exit would be too long for the guest of this pCPU.
#[inline(never)]
fn serve_pcpu(vcpu: &mut Vcpu, now: u64) {
    let Some(pcpu) = vcpu.pcpu.as_deref_mut() else {
        return;
    };
    // A deadline that is set meanwhile and is due at once gets its own exit.
    let due = pcpu.take_deadlines(now);
    if SHARED && due.has(Purpose::Balance) {
        balance::look(vcpu);
    }
    if IO && due.has(Purpose::BANDWIDTH) {
        bandwidth::look(vcpu);
    }
    if due.has_any([Purpose::Flush, Purpose::Monitor]) {
        devices::drain(vcpu, due.has(Purpose::Flush), false);
    }
}

/// Serves the deadlines of the vCPU.
#[inline(always)]
pub fn due_of_vcpu(vcpu: &mut Vcpu, now: u64) {
    if vcpu.deadlines.is_due(now) {
        serve_vcpu(vcpu);
    }
}

#[inline(never)]
fn serve_vcpu(vcpu: &mut Vcpu) {
    let due = vcpu.deadlines.take(timer::now());
    if due.has(Purpose::PhysicalTimer) {
        timed::follow_physical(vcpu);
    }
    if due.has_any([Purpose::Watchdog, Purpose::Alarm]) {
        timed::look(vcpu);
    }
    if due.has(Purpose::Doorbell) {
        doorbell::look(vcpu);
    }
}
