//! How a pCPU comes back whose VM could mask EL2's interrupts: another pCPU takes its stage 2 away before it calls, and the guest comes to
//! EL2 by the fault that follows.

use bulkhead_core::gppt::Reclaim;

use crate::hw::{cpu, gic, upcall};
use crate::vcpu::Vcpu;
use crate::{lifecycle, sched};

use super::state::Gppt;

/// How often EL2 looks whether another pCPU is done with the stage 2.
const PATIENCE: u32 = 50;

/// The vCPU is of such a VM, and its stage 2 is away: what it ran into may be that.
#[inline(always)]
pub fn is_gone(vcpu: &Vcpu) -> bool {
    vcpu.gppt.is_some() && gic::gppt::is_gone(vcpu.index)
}

/// The guest has come to EL2 because its stage 2 is away. Undoes what the SGI did to it, gives it back and does what the
/// pCPU was wanted for. If another pCPU is still at it after a while, the guest runs into it once more.
pub fn finish_revoke(vcpu: &mut Vcpu) {
    if !is_gone(vcpu) {
        return;
    }
    if let Some((pc, spsr)) = cpu::entered().rewind() {
        cpu::go_back(pc, spsr);
    }
    // What the other one still has to do is short, and without a branch back.
    for _ in 0..PATIENCE {
        if gic::gppt::give_back(vcpu.index) {
            upcall::deliver_mail(vcpu);
            sched::on_mail(vcpu);
            return;
        }
        cpu::let_others();
    }
}

/// WFI of such a VM, where it traps: EL2 sleeps for it, once; WFI may end for no reason. `false`: it is none.
///
/// An interrupt that the guest's CPU interface signals ends the sleep, as it would that of the guest. If EL2's own could not get
/// through there, none of the guest's can, which are not more urgent: then the interface is EL2's meanwhile.
#[inline(never)]
pub fn wait(vcpu: &mut Vcpu) -> bool {
    let guaranteed = |gppt: &Gppt| gppt.reclaim == Reclaim::Guaranteed;
    if !vcpu.gppt.as_ref().is_some_and(guaranteed) {
        return false;
    }
    // Whoever takes its stage 2 away from now on sends the SGI afterwards, which ends the sleep.
    if is_gone(vcpu) || gic::gppt::is_signalled() {
        return true;
    }
    if gic::gppt::lets_kick_through() {
        gic::gppt::route_to_el2(true);
        gic::el2_wait(vcpu.index);
        gic::gppt::route_to_el2(false);
        return true;
    }
    if let Some(gppt) = &mut vcpu.gppt {
        gppt.hide(&vcpu.gic);
    }
    if !upcall::poll(vcpu) {
        gic::el2_wait(vcpu.index);
        upcall::poll(vcpu);
    }
    // If that is the end of the VM, EL2 keeps the interface.
    lifecycle::do_exit_work(vcpu);
    if let Some(gppt) = &mut vcpu.gppt {
        gppt.show(&vcpu.gic);
    }
    true
}
