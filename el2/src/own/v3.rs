//! On a GICv3: what of the CPU interface traps.

use bulkhead_core::exit::ec;
use bulkhead_core::gppt::{Common, Mode, Reclaim, TWO_STEPS, UpperV3, sgi};
use bulkhead_core::monitor::Gate;

use super::{NO_PRIORITY, Own};
use crate::hw::gic::{self, Gic, Taken};
use crate::hw::sdei;
use crate::vcpu::Vcpu;
use crate::{dispatch, mailbox, sched};

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
        if self.reclaim == Reclaim::Sdei {
            sdei::leave();
            gic::own::end_all();
        }
        gic::own::reset_interface(self.mode.controls(self.reclaim), trapped);
        self.kept = Kept(0);
    }

    /// The vCPU leaves its pCPU to EL2.
    pub fn hide(&mut self, _: &Gic) {
        if self.reclaim == Reclaim::Sdei {
            sdei::leave();
        }
        self.kept = Kept(gic::own::hide());
    }

    /// It has it again, or for the first time.
    pub fn show(&mut self, _: &Gic) {
        gic::own::show(self.kept.0);
        if self.reclaim == Reclaim::Sdei {
            sdei::arrive();
        }
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

/// Nobody takes stage 2 away: EL2's kick is a Group 0 interrupt, or an event of the firmware.
pub const fn is_gone(_: &Vcpu) -> bool {
    false
}

/// The guest has come to EL2, by an exception of this class, because of an event that had interrupted EL2. Guests do not step
/// themselves.
#[inline(always)]
pub const fn has_come_back(_: &Vcpu, class: u64) -> bool {
    class == ec::STEP_LOWER
}

/// Takes EL2's interrupt that has come as a FIQ. Of an event there is none to take.
pub fn acknowledge(vcpu: &Vcpu) -> Taken {
    if gic::own::has_events(vcpu.index) {
        Taken::NOTHING
    } else {
        gic::acknowledge_group0()
    }
}

/// The guest has come to EL2 because of an event. Does what the pCPU was wanted for.
pub fn come_back(vcpu: &mut Vcpu) {
    if gic::own::has_events(vcpu.index) {
        look(vcpu);
    }
}

fn look(vcpu: &mut Vcpu) {
    sdei::answer();
    mailbox::open(vcpu);
    sched::mail(vcpu);
}

/// Handles one interrupt of EL2's, or event, that is pending while EL2 has the pCPU; `false` if there is none.
pub fn poll(vcpu: &mut Vcpu) -> bool {
    if gic::own::has_events(vcpu.index) {
        let came = sdei::came();
        if came {
            look(vcpu);
        }
        return came;
    }
    let taken = gic::acknowledge_group0();
    if taken.is_nothing() {
        return false;
    }
    dispatch::handle(vcpu, taken);
    true
}

/// WFI does not trap.
pub const fn wait(_: &mut Vcpu) -> bool {
    false
}
