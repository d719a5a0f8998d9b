//! On a GICv2: the VM has the CPU interface's frame, and EL2's kick could be masked there. So another pCPU takes its stage 2 away
//! before it sends the SGI, and the guest comes to EL2 by the fault that follows.

use bulkhead_core::cpu::exit::ec;
use bulkhead_core::gppt::Common;
use bulkhead_core::monitor::Gate;

use crate::hw::gic::gppt::Interface;
use crate::hw::gic::{self, Gic, Taken};
use crate::plan::plan;
use crate::vcpu::Vcpu;

use super::kept_v2::Kept;
use super::revoke::is_gone;
use super::state::{Gppt, NO_PRIORITY};

pub use super::revoke::finish_revoke;

impl Gppt {
    /// The CPU interface as the guest finds it after a reset.
    pub(super) fn reset_interface(&mut self, gic: &Gic) {
        self.hide(gic);
        gic::gppt::trap(self.controls);
        self.kept = Kept::of(self.mode);
    }

    /// The vCPU leaves its pCPU to EL2: nothing of its own comes, and EL2's interrupts do.
    pub fn hide(&mut self, gic: &Gic) {
        if self.kept.0.is_some() {
            return;
        }
        super::state::perform(gic, &self.filter.withhold(true));
        self.kept = Kept(Some(Interface::save()));
        gic.enable(plan().header.board.hyp_timer_intid);
    }

    /// It has it again, or for the first time. Its stage 2 may still be away.
    pub fn show(&mut self, gic: &Gic) {
        let Some(kept) = self.kept.0.take() else {
            return;
        };
        gic.disable(plan().header.board.hyp_timer_intid);
        kept.restore();
        super::state::perform(gic, &self.filter.withhold(false));
    }

    /// What stands between its interrupts, which are all of group 0, and the guest.
    pub fn gate(&self, forwarded: u64) -> Gate {
        let now = match self.kept.0 {
            Some(kept) => kept,
            None => Interface::look(),
        };
        Gate {
            mask: u64::from(now.mask),
            running: now.running().map_or(NO_PRIORITY, u64::from),
            groups: u64::from(now.control & 0b11),
            forwarded,
            // FIQEn
            fiq: u64::from(now.control >> 3 & 1),
        }
    }
}

/// There is no such register.
pub const fn send_sgi(_: &Vcpu, _: u64, _: bool) -> bool {
    false
}

/// There is no such register.
pub const fn common(_: &mut Vcpu, _: Common, _: bool, _: u8) -> bool {
    false
}

/// A write of such a VM to GICC_DIR. `false`: it is none.
pub fn deactivate(vcpu: &Vcpu, value: u32) -> bool {
    let Some(gppt) = &vcpu.gppt else {
        return false;
    };
    if gppt.filter.owns(value & 0x3ff) {
        gic::gppt::deactivate(value);
    }
    true
}

/// There is no Group 0 interrupt of EL2's.
pub fn acknowledge(_: &Vcpu) -> Taken {
    gic::acknowledge_group0()
}

/// The guest has come to EL2, by an exception of this class, because its stage 2 is away.
#[inline(always)]
pub fn was_revoked(vcpu: &Vcpu, class: u64) -> bool {
    class == ec::FETCH_LOWER && is_gone(vcpu)
}

/// No pCPU is got back by events.
pub const fn poll_event(_: &mut Vcpu) -> Option<bool> {
    Some(false)
}
