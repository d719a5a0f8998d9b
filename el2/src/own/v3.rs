//! On a GICv3: what of the CPU interface traps.

use bulkhead_core::gppt::{Common, Mode, TWO_STEPS, UpperV3, sgi};
use bulkhead_core::monitor::Gate;

use super::{NO_PRIORITY, Own};
use crate::hw::gic::{self, Gic};
use crate::vcpu::Vcpu;

/// What the filter is for.
pub type Kind = UpperV3;
/// The same.
pub const KIND: Kind = UpperV3;

/// What is kept while the vCPU does not have its pCPU: ICC_IGRPEN1_EL1.
#[derive(Debug, Default)]
pub struct Kept(u64);

impl Own {
    /// The CPU interface as the guest finds it after a reset.
    pub(super) fn reset_interface(&mut self, _: &Gic) {
        let trapped = self.mode == Mode::PmrTrapped;
        gic::own::reset_interface(self.mode.controls(self.reclaim), trapped);
        self.kept = Kept(0);
    }

    /// The vCPU leaves its pCPU to EL2.
    pub fn hide(&mut self, _: &Gic) {
        self.kept = Kept(gic::own::hide());
    }

    /// It has it again, or for the first time.
    pub fn show(&mut self, _: &Gic) {
        gic::own::show(self.kept.0);
    }

    /// What stands between its interrupts, which are all of group 1, and the guest.
    pub fn gate(&self, forwarded: u64) -> Gate {
        let seen = |which: Common| which.to_guest(gic::own::common(which));
        let running = seen(Common::Running);
        Gate {
            mask: if self.mode == Mode::PmrTrapped {
                seen(Common::Mask)
            } else {
                NO_PRIORITY
            },
            running: if running == 0xff {
                NO_PRIORITY
            } else {
                running
            },
            groups: gic::own::group1() << 1,
            forwarded,
            fiq: 0b01,
        }
    }
}

/// A write of such a VM to ICC_SGI1R_EL1 (`group1`) or its kin. `false`: it is none.
pub fn send_sgi(vcpu: &Vcpu, value: u64, group1: bool) -> bool {
    if vcpu.own.is_none() {
        return false;
    }
    let sgi = sgi::by_register(value, vcpu.number, vcpu.vcpus).filter(|_| group1);
    if let Some(sgi) = sgi {
        for vcpu_number in sgi.vcpus.iter() {
            if let Some(place) = vcpu.gic.siblings.get(vcpu_number) {
                gic::send_to(sgi.intid, place);
            }
        }
    }
    true
}

/// Performs an access of such a VM to a register of the CPU interface that traps. `false`: it is none, or cannot be written.
pub fn common(vcpu: &mut Vcpu, which: Common, read: bool, gpr: u8) -> bool {
    if vcpu.own.is_none() {
        return false;
    }
    let board = gic::own::common(which);
    if read {
        vcpu.frame.set(gpr, which.to_guest(board));
        return true;
    }
    let value = which.to_board(vcpu.frame.get(gpr), board);
    if let Some(value) = value {
        gic::own::set_common(which, value);
    }
    value.is_some()
}

/// A write of such a VM to ICC_DIR_EL1. `false`: it is none.
pub fn deactivate(vcpu: &Vcpu, intid: u32) -> bool {
    let Some(own) = &vcpu.own else {
        return false;
    };
    if gic::own::common(Common::Control) & TWO_STEPS != 0
        && let Some(write) = own.filter.deactivate(intid)
    {
        vcpu.gic.filtered_write(&write);
    }
    true
}

/// Nobody takes stage 2 away: EL2's kick is a Group 0 interrupt.
pub const fn is_gone(_: &Vcpu) -> bool {
    false
}

/// So there is nothing to come back from.
pub const fn come_back(_: &mut Vcpu) {}

/// WFI does not trap.
pub const fn wait(_: &mut Vcpu) -> bool {
    false
}
