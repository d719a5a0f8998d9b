//! CPU time where no pCPU is shared: the only vCPU of a pCPU has it to itself, and its thread never
//! leaves it. This module takes the place of `sched.rs` in the profile `static`, whose plans have no
//! other vCPUs (`bulkhead_core::plan`, invariant `profile`).

use bulkhead_core::vgic::Notify;

use crate::hw::state::IDLE;
use crate::hw::{firmware, gic, thread, upcall};
use crate::pcpu::POLLS;
use crate::plan::plan;
use crate::vcpu::Vcpu;
use crate::{deadlines, vm};

/// The slot of the only vCPU of a pCPU.
const ONLY: usize = 0;

/// Creates the vCPU of this pCPU, if it has one, and its thread.
pub fn make_vcpus(idle: &mut Vcpu) {
    let index = idle.index;
    let Some((id, row)) = plan().vcpus_on(index).next() else {
        return;
    };
    let (state, stack) = thread::make(id, index);
    state.become_vcpu(idle, id, row, ONLY);
    if let Some(place) = idle
        .pcpu
        .as_deref_mut()
        .and_then(|pcpu| pcpu.stacks.get_mut(ONLY))
    {
        *place = stack;
    }
}

/// Becomes the thread of the only vCPU, if there is one.
#[inline(always)]
pub fn leave_idle(idle: &mut Vcpu) {
    if let Some(pcpu) = idle.pcpu.take_if(|pcpu| pcpu.stacks[ONLY] != 0) {
        // Nobody switches back.
        idle.pcpu = Some(thread::switch(pcpu, IDLE, ONLY));
    }
}

/// Starts the thread of a vCPU. The registers of the hardware are not those of a guest yet.
pub fn begin(vcpu: &mut Vcpu) {
    let quirks = vcpu.pcpu.as_deref().map_or(0, |pcpu| pcpu.quirks);
    vcpu.context.restore_registers(quirks);
    vcpu.context.interface.restore(&vcpu.gic);
    vcpu.gic.enable_private(vcpu.timer_bits, 0);
    // Off: a boot loader may have left them on.
    vcpu.context.timers.restore_virtual();
    vcpu.context.timers.restore_physical();
    deadlines::set_timer(vcpu);
}

/// Returns from a wait of a vCPU that has nothing to do, when an interrupt is pending. Where nothing
/// is left to do on the whole board, switches the board off.
pub fn block(vcpu: &mut Vcpu) {
    if vm::all_stopped() && vcpu.console().is_some_and(|service| service.is_done()) {
        firmware::power_off();
    }
    gic::el2_wait(vcpu.index, false);
    upcall::poll(vcpu);
}

/// Does the work that other pCPUs and the console ask of this pCPU between two slices of long work.
/// `false`: more interrupts may be pending.
pub fn poll_and_yield(vcpu: &mut Vcpu) -> bool {
    // More than there can be sources of interrupts, so that the last look finds none, and the work of
    // an interrupt does not add to the next slice.
    (0..POLLS).any(|_| !upcall::poll(vcpu))
}

/// Does nothing: nobody waits for this pCPU.
pub fn yield_cpu(_: &mut Vcpu) {}

/// Does nothing: nobody waits for this pCPU.
pub fn yield_point(_: &mut Vcpu) {}

/// Does nothing: nobody else is to run.
pub fn reschedule(_: &mut Vcpu) {}

/// Does nothing: no thread rests.
pub fn go_on(_: &mut Vcpu) {}

/// Does nothing: WFI does not trap where the vCPU has its pCPU to itself.
pub fn wait(_: &mut Vcpu) {}

/// Does nothing: no turn ends.
pub fn end_turn(_: &mut Vcpu, _now: u64) {}

/// Returns `false`: no turn ends.
pub const fn is_over(_: &Vcpu, _now: u64) -> bool {
    false
}

/// Returns `false`: nobody else has to be woken.
pub const fn timer_fired(_: &mut Vcpu, _now: u64) -> bool {
    false
}

/// Does nothing: there are no limits.
pub fn apply_limits(_: &mut Vcpu) {}

/// Notifies a sibling, which is not on this pCPU.
pub fn notify_one(vcpu: &mut Vcpu, whom: Notify) {
    vcpu.notify(whom);
}

/// Does nothing: the pCPU has no vCPU that does not run.
pub fn on_mail(_: &mut Vcpu) {}

/// Does nothing: the pCPU has no vCPU that does not run.
pub fn on_sibling_sgi(_: &mut Vcpu) {}

/// Returns `false`: the pCPU has no vCPU that does not run.
pub const fn on_spi(_: &mut Vcpu, _pintid: u32) -> bool {
    false
}

/// Returns 0: no time is stolen.
pub const fn stolen(_: &Vcpu) -> u64 {
    0
}
