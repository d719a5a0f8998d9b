//! GPPT on a GICv3: the parts of the CPU interface that trap.

use bulkhead_core::cpu::exit::ec;
use bulkhead_core::gppt::{Board, Common, Mode, Reclaim, TWO_STEPS, priority, sgi};
use bulkhead_core::monitor::Gate;

use crate::hw::gic::gppt::Interface;
use crate::hw::gic::gppt_shared;
use crate::hw::gic::{self, Gic, Taken};
use crate::hw::{sdei, upcall};
use crate::plan::plan;
use crate::sched;
use crate::vcpu::Vcpu;

use super::kept_v3::Kept;
use super::revoke;
use super::state::{Gppt, NO_PRIORITY};

impl Gppt {
    /// Resets the CPU interface to the state that the guest finds after a reset.
    pub(super) fn reset_interface(&mut self, gic: &Gic) {
        self.save_interface(gic);
        if self.reclaim == Reclaim::Sdei || !self.mode.el2_in_group0() {
            gic::gppt::end_all();
        }
        let mask = match self.mode {
            mode if !mode.traps_common() => 0xff,
            Mode::RevocableTrapped => gppt_shared::to_shown(priority::to_board(0)),
            _ => priority::to_board(0),
        };
        gic::gppt::reset_interface(self.controls, mask);
        self.kept = Kept::of(self.mode);
        if matches!(self.kept, Kept::All(_)) {
            gic::gppt::route_to_el2();
        }
    }

    /// Saves the CPU interface when EL2 takes the pCPU over: no interrupt of the guest's arrives,
    /// and EL2's interrupts do.
    pub fn save_interface(&mut self, gic: &Gic) {
        if self.reclaim == Reclaim::Sdei {
            sdei::put();
        }
        match &mut self.kept {
            Kept::Group1(enabled) => *enabled = gic::gppt::disable_group1(),
            Kept::All(Some(_)) => {}
            Kept::All(kept) => {
                *kept = Some(Interface::save());
                gic.enable(plan().header.board.hyp_timer_intid);
            }
        }
    }

    /// Restores the CPU interface for the guest, or gives it to the guest for the first time. The
    /// VM's stage 2 may still be away.
    pub fn restore_interface(&mut self, gic: &Gic) {
        match &mut self.kept {
            Kept::Group1(enabled) => gic::gppt::restore_group1(*enabled),
            Kept::All(kept) => {
                if let Some(kept) = kept.take() {
                    gic.disable(plan().header.board.hyp_timer_intid);
                    kept.restore(self.controls);
                }
            }
        }
        if self.reclaim == Reclaim::Sdei {
            sdei::load();
        }
    }

    /// Returns the mask, priorities and group enables that decide whether an interrupt reaches the
    /// guest. All interrupts of the guest are in Group 1.
    pub fn gate(&self, forwarded: u64) -> Gate {
        let now = match &self.kept {
            Kept::All(Some(kept)) => *kept,
            _ => Interface::look(),
        };
        let seen = |which: Common, board| match self.mode {
            Mode::PmrDirect => board,
            mode => seen(mode, which, board),
        };
        let running = seen(Common::Running, now.running) & 0xff;
        Gate {
            mask: if self.mode != Mode::PmrDirect && !self.mode.traps_common() {
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

/// Performs a write of a GPPT VM to ICC_SGI1R_EL1 (`group1`) or to another SGI register. Returns
/// `false` if the VM is not a GPPT VM.
#[inline(never)]
pub fn send_sgi(vcpu: &Vcpu, value: u64, group1: bool) -> bool {
    if vcpu.gppt.is_none() {
        return false;
    }
    let sgi = sgi::by_register(value, vcpu.number, vcpu.vcpus).filter(|_| group1);
    // There is no other vCPU.
    if let Some(sgi) = sgi {
        gic::gppt::send_to_guest(sgi.intid, vcpu.index);
    }
    true
}

/// Converts the value `board` of a register that both groups have in common to what a guest in
/// this mode, whose priorities are not the board's, sees.
fn seen(mode: Mode, which: Common, board: u64) -> u64 {
    if mode.el2_in_group0() {
        which.to_guest(board)
    } else {
        gppt_shared::to_guest(which, board)
    }
}

/// Performs an access of a GPPT VM to a register of the CPU interface that traps. Returns `false`
/// if the VM is not a GPPT VM or the register cannot be written.
pub fn common(vcpu: &mut Vcpu, which: Common, read: bool, gpr: u8) -> bool {
    let Some(mode) = vcpu.gppt.as_ref().map(|gppt| gppt.mode) else {
        return false;
    };
    let board = gic::gppt::common(which);
    if read {
        vcpu.frame.set(gpr, seen(mode, which, board));
        return true;
    }
    let mut value = which.to_board(vcpu.frame.get(gpr), board);
    if mode == Mode::RevocableTrapped && which == Common::Mask {
        value = value.map(|mask| u64::from(gppt_shared::to_shown(mask as u8)));
    }
    if let Some(value) = value {
        gic::gppt::set_common(which, value);
    }
    value.is_some()
}

/// Performs a write of a GPPT VM to ICC_DIR_EL1. Returns `false` if the VM is not a GPPT VM.
pub fn deactivate(vcpu: &Vcpu, intid: u32) -> bool {
    let Some(gppt) = &vcpu.gppt else {
        return false;
    };
    if gic::gppt::common(Common::Control) & TWO_STEPS != 0
        && let Some(write) = gppt.filter.deactivate(intid)
    {
        let mut board = vcpu.gic.filtered();
        board.write(write);
        board.settle();
    }
    true
}

/// Whether the guest has entered EL2, by an exception of this class, because its stage 2 was taken
/// away, or because of an event that had interrupted EL2, which then arrives as a software step
/// exception. Guests do not single-step themselves.
#[inline(always)]
pub fn was_revoked(vcpu: &Vcpu, class: u64) -> bool {
    class == ec::STEP_LOWER || class == ec::FETCH_LOWER && revoke::is_gone(vcpu)
}

/// Acknowledges EL2's interrupt that has arrived as a FIQ. Where Group 0 is the firmware's, EL2 has
/// none, and its registers are not EL2's to read.
pub fn acknowledge(vcpu: &Vcpu) -> Taken {
    if gic::gppt::has_events(vcpu.index) || gic::gppt::shares_group1(vcpu.index) {
        Taken::NOTHING
    } else {
        gic::acknowledge_group0()
    }
}

/// Finishes the entry of a guest that has entered EL2 without an interrupt of EL2's: does the work
/// for which the pCPU was reclaimed.
pub fn finish_revoke(vcpu: &mut Vcpu) {
    if gic::gppt::has_events(vcpu.index) {
        look(vcpu);
    } else {
        revoke::finish_revoke(vcpu);
    }
}

fn look(vcpu: &mut Vcpu) {
    if gic::gppt::has_events(vcpu.index) {
        sdei::answer();
    }
    gic::order_acknowledge();
    upcall::deliver_mail(vcpu);
    sched::on_mail(vcpu);
}

/// Handles a message to a pCPU on which EL2 has no interrupts, and returns whether there was one;
/// `None` on any other pCPU.
pub fn poll_event(vcpu: &mut Vcpu) -> Option<bool> {
    let signalled = if gic::gppt::has_events(vcpu.index) {
        sdei::is_signalled()
    } else if gic::gppt::shares_group1(vcpu.index) {
        gic::gppt::answer(vcpu.index)
    } else {
        return None;
    };
    if signalled {
        look(vcpu);
    }
    Some(signalled)
}
