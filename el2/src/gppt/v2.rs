//! GPPT on a GICv2: the VM has the frame of the CPU interface, where it could mask EL2's kick. So
//! another pCPU takes its stage 2 away before it sends the SGI, and the guest enters EL2 by the
//! fault that follows.

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
    /// Resets the CPU interface to the state that the guest finds after a reset.
    pub(super) fn reset_interface(&mut self, gic: &Gic) {
        self.save_interface(gic);
        gic::gppt::trap(self.controls);
        self.kept = Kept::of(self.mode);
    }

    /// Disables what the guest has enabled, or enables it again.
    fn withhold(&self, gic: &Gic, withheld: bool) {
        let mut board = gic.filtered();
        self.filter.withhold(&mut board, withheld);
        board.settle();
    }

    /// Saves the CPU interface when EL2 takes the pCPU over: no interrupt of the guest's arrives,
    /// and EL2's interrupts do.
    pub fn save_interface(&mut self, gic: &Gic) {
        if self.kept.0.is_some() {
            return;
        }
        self.withhold(gic, true);
        self.kept = Kept(Some(Interface::save()));
        gic.enable(plan().header.board.hyp_timer_intid);
    }

    /// Restores the CPU interface for the guest, or gives it to the guest for the first time. The
    /// VM's stage 2 may still be away.
    pub fn restore_interface(&mut self, gic: &Gic) {
        let Some(kept) = self.kept.0.take() else {
            return;
        };
        gic.disable(plan().header.board.hyp_timer_intid);
        kept.restore(self.controls);
        self.withhold(gic, false);
    }

    /// Returns the mask, priorities and group enables that decide whether an interrupt reaches the
    /// guest. All interrupts of the guest are in Group 0.
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

/// Does nothing: a GICv2 has no such register.
pub const fn send_sgi(_: &Vcpu, _: u64, _: bool) -> bool {
    false
}

/// Does nothing: a GICv2 has no such register.
pub const fn common(_: &mut Vcpu, _: Common, _: bool, _: u8) -> bool {
    false
}

/// Performs a write of a GPPT VM to GICC_DIR. Returns `false` if the VM is not a GPPT VM.
pub fn deactivate(vcpu: &Vcpu, value: u32) -> bool {
    let Some(gppt) = &vcpu.gppt else {
        return false;
    };
    if gppt.filter.owns(value & 0x3ff) {
        gic::gppt::deactivate(value);
    }
    true
}

/// Acknowledges a Group 0 interrupt; EL2 has none here.
pub fn acknowledge(_: &Vcpu) -> Taken {
    gic::acknowledge_group0()
}

/// Whether the guest has entered EL2, by an exception of this class, because its stage 2 was taken
/// away.
#[inline(always)]
pub fn was_revoked(vcpu: &Vcpu, class: u64) -> bool {
    class == ec::FETCH_LOWER && is_gone(vcpu)
}

/// Returns `Some(false)`: no pCPU is reclaimed by events.
pub const fn poll_event(_: &mut Vcpu) -> Option<bool> {
    Some(false)
}
