//! On a GICv3: what of the CPU interface traps.

use bulkhead_core::cpu::exit::ec;
use bulkhead_core::gppt::{Common, Mode, Reclaim, TWO_STEPS, sgi};
use bulkhead_core::monitor::Gate;

use crate::hw::gic::gppt::Interface;
use crate::hw::gic::{self, Gic, Taken};
use crate::hw::{sdei, upcall};
use crate::plan::plan;
use crate::sched;
use crate::vcpu::Vcpu;

use super::kept_v3::Kept;
use super::revoke;
use super::state::{Gppt, NO_PRIORITY};

impl Gppt {
    /// The CPU interface as the guest finds it after a reset.
    pub(super) fn reset_interface(&mut self, gic: &Gic) {
        self.hide(gic);
        if self.reclaim == Reclaim::Sdei {
            gic::gppt::end_all();
        }
        gic::gppt::reset_interface(self.controls, self.mode == Mode::PmrTrapped);
        self.kept = Kept::of(self.mode);
        if matches!(self.kept, Kept::All(_)) {
            gic::gppt::route_to_el2(true);
        }
    }

    /// The vCPU leaves its pCPU to EL2: nothing of its own comes, and EL2's interrupts do.
    pub fn hide(&mut self, gic: &Gic) {
        if self.reclaim == Reclaim::Sdei {
            sdei::leave();
        }
        match &mut self.kept {
            Kept::Group1(enabled) => *enabled = gic::gppt::hide(),
            Kept::All(Some(_)) => {}
            Kept::All(kept) => {
                *kept = Some(Interface::save());
                gic.enable(plan().header.board.hyp_timer_intid);
            }
        }
    }

    /// It has it again, or for the first time. Its stage 2 may still be away.
    pub fn show(&mut self, gic: &Gic) {
        match &mut self.kept {
            Kept::Group1(enabled) => gic::gppt::show(*enabled),
            Kept::All(kept) => {
                if let Some(kept) = kept.take() {
                    gic.disable(plan().header.board.hyp_timer_intid);
                    kept.restore();
                }
            }
        }
        if self.reclaim == Reclaim::Sdei {
            sdei::arrive();
        }
    }

    /// What stands between its interrupts, which are all of group 1, and the guest.
    pub fn gate(&self, forwarded: u64) -> Gate {
        let now = match &self.kept {
            Kept::All(Some(kept)) => *kept,
            _ => Interface::look(),
        };
        let seen = |which: Common, board| match self.mode {
            Mode::PmrDirect => board,
            _ => which.to_guest(board),
        };
        let running = seen(Common::Running, now.running) & 0xff;
        Gate {
            mask: if self.mode == Mode::Recoverable {
                NO_PRIORITY
            } else {
                seen(Common::Mask, now.mask)
            },
            running: if running == 0xff {
                NO_PRIORITY
            } else {
                running
            },
            groups: now.group1 << 1,
            forwarded,
            fiq: 0b01,
        }
    }
}

/// A write of such a VM to ICC_SGI1R_EL1 (`group1`) or its kin. `false`: it is none.
pub fn send_sgi(vcpu: &Vcpu, value: u64, group1: bool) -> bool {
    if vcpu.gppt.is_none() {
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
    if vcpu.gppt.is_none() {
        return false;
    }
    let board = gic::gppt::common(which);
    if read {
        vcpu.frame.set(gpr, which.to_guest(board));
        return true;
    }
    let value = which.to_board(vcpu.frame.get(gpr), board);
    if let Some(value) = value {
        gic::gppt::set_common(which, value);
    }
    value.is_some()
}

/// A write of such a VM to ICC_DIR_EL1. `false`: it is none.
pub fn deactivate(vcpu: &Vcpu, intid: u32) -> bool {
    let Some(gppt) = &vcpu.gppt else {
        return false;
    };
    if gic::gppt::common(Common::Control) & TWO_STEPS != 0
        && let Some(write) = gppt.filter.deactivate(intid)
    {
        vcpu.gic.filtered_write(&write);
    }
    true
}

/// The guest has come to EL2, by an exception of this class, because its stage 2 is away, or because of an event that had interrupted EL2.
/// Guests do not step themselves.
#[inline(always)]
pub fn was_revoked(vcpu: &Vcpu, class: u64) -> bool {
    class == ec::STEP_LOWER || class == ec::FETCH_LOWER && revoke::is_gone(vcpu)
}

/// Takes EL2's interrupt that has come as a FIQ. Of an event there is none to take.
pub fn acknowledge(vcpu: &Vcpu) -> Taken {
    if gic::gppt::has_events(vcpu.index) {
        Taken::NOTHING
    } else {
        gic::acknowledge_group0()
    }
}

/// The guest has come to EL2 without an interrupt of EL2's. Does what the pCPU was wanted for.
pub fn finish_revoke(vcpu: &mut Vcpu) {
    if gic::gppt::has_events(vcpu.index) {
        look(vcpu);
    } else {
        revoke::finish_revoke(vcpu);
    }
}

fn look(vcpu: &mut Vcpu) {
    sdei::answer();
    upcall::deliver_mail(vcpu);
    sched::on_mail(vcpu);
}

/// Does what an event of the firmware has come for, on a pCPU that is got back by events; `None` on any other.
pub fn poll_event(vcpu: &mut Vcpu) -> Option<bool> {
    gic::gppt::has_events(vcpu.index).then(|| {
        let came = sdei::came();
        if came {
            look(vcpu);
        }
        came
    })
}
