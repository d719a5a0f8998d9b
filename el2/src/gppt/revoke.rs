//! Revoke and poke: reclaiming the pCPU of a VM that could mask EL2's interrupts. Another pCPU
//! takes the VM's stage 2 away before it sends an SGI, and the guest enters EL2 by the fault that
//! follows.

use bulkhead_core::gppt::Reclaim;

use crate::hw::{cpu, gic, upcall};
use crate::vcpu::Vcpu;
use crate::{lifecycle, sched};

use super::state::Gppt;

/// Number of times that EL2 checks whether another pCPU is done with the stage 2.
const PATIENCE: u32 = 50;

/// Whether the vCPU is that of a GPPT VM whose stage 2 has been taken away, which may be the cause
/// of its fault.
#[inline(always)]
pub fn is_gone(vcpu: &Vcpu) -> bool {
    vcpu.gppt.is_some() && gic::gppt::is_gone(vcpu.index)
}

/// Handles the entry to EL2 of a guest whose stage 2 has been taken away. Rewinds the exception
/// that the SGI caused in the guest, restores the stage 2 and does the work for which the pCPU was
/// reclaimed. If another pCPU is still using the stage 2 after a while, the guest faults once more.
pub fn finish_revoke(vcpu: &mut Vcpu) {
    if !is_gone(vcpu) {
        return;
    }
    if let Some((pc, spsr)) = cpu::entered().rewind() {
        cpu::go_back(pc, spsr);
    }
    // What the other pCPU still has to do is short, and repeated only if a third pCPU has asked
    // meanwhile.
    for _ in 0..PATIENCE {
        if gic::gppt::give_back(vcpu.index) {
            upcall::deliver_mail(vcpu);
            sched::on_mail(vcpu);
            return;
        }
        cpu::let_others();
    }
}

/// Handles a trapped WFI of a GPPT VM with guaranteed reclaim: EL2 sleeps in its place, once, since
/// WFI may end for no reason. Returns `false` if the VM has no guaranteed reclaim.
///
/// An interrupt that the guest's CPU interface signals ends the sleep, as it would end the guest's
/// WFI. If the CPU interface would mask EL2's interrupt, it masks all of the guest's too, which are
/// not more urgent: then EL2 takes over the CPU interface for the sleep.
#[inline(never)]
pub fn wait(vcpu: &mut Vcpu) -> bool {
    let guaranteed = |gppt: &Gppt| gppt.reclaim == Reclaim::Guaranteed;
    if !vcpu.gppt.as_ref().is_some_and(guaranteed) {
        return false;
    }
    // Whoever takes the stage 2 away from now on sends the SGI afterwards, which ends the sleep.
    if is_gone(vcpu) || gic::gppt::is_signalled() {
        return true;
    }
    if gic::gppt::lets_kick_through(vcpu.index) {
        gic::gppt::route_to_el2();
        gic::el2_wait(vcpu.index, true);
        if let Some(gppt) = &vcpu.gppt {
            gic::gppt::route_to_guest(gppt.controls);
        }
        return true;
    }
    if let Some(gppt) = &mut vcpu.gppt {
        gppt.save_interface(&vcpu.gic);
    }
    if !upcall::poll(vcpu) {
        gic::el2_wait(vcpu.index, false);
        upcall::poll(vcpu);
    }
    // If this ends the VM, EL2 keeps the CPU interface.
    lifecycle::do_exit_work(vcpu);
    if let Some(gppt) = &mut vcpu.gppt {
        gppt.restore_interface(&vcpu.gic);
    }
    true
}
