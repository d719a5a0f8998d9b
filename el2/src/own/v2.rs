//! On a GICv2: the VM has the CPU interface's frame, and EL2's kick could be masked there. So another pCPU takes its stage 2 away
//! before it sends the SGI, and the guest comes to EL2 by the fault that follows.

use bulkhead_core::exit::ec;
use bulkhead_core::gppt::{Common, PlainV2, Reclaim};
use bulkhead_core::monitor::Gate;

use super::{NO_PRIORITY, Own};
use crate::hw::gic::own::Interface;
use crate::hw::gic::{self, Gic, Taken};
use crate::hw::{boot, cpu};
use crate::start::plan;
use crate::vcpu::Vcpu;
use crate::{lifecycle, mailbox, sched};

/// What the filter is for.
pub type Kind = PlainV2;
/// The same.
pub const KIND: Kind = PlainV2;

/// How often EL2 looks whether another pCPU is done with the stage 2.
const PATIENCE: u32 = 50;

/// The guest's CPU interface while EL2 has the pCPU, which has it at first; `None`: the guest has it.
#[derive(Debug)]
pub struct Kept(Option<Interface>);

impl Default for Kept {
    fn default() -> Self {
        Self(Some(Interface::RESET))
    }
}

impl Own {
    /// The CPU interface as the guest finds it after a reset.
    pub(super) fn reset_interface(&mut self, gic: &Gic) {
        self.hide(gic);
        gic::own::trap(self.mode.controls(self.reclaim));
        self.kept = Kept::default();
    }

    /// The vCPU leaves its pCPU to EL2: nothing of its own comes, and EL2's interrupts do.
    pub fn hide(&mut self, gic: &Gic) {
        if self.kept.0.is_some() {
            return;
        }
        super::perform(gic, &self.filter.withhold(true));
        self.kept = Kept(Some(Interface::keep()));
        gic.enable(plan().header.board.hyp_timer_intid);
    }

    /// It has it again, or for the first time. Its stage 2 may still be away.
    pub fn show(&mut self, gic: &Gic) {
        let Some(kept) = self.kept.0.take() else {
            return;
        };
        gic.disable(plan().header.board.hyp_timer_intid);
        kept.bring();
        super::perform(gic, &self.filter.withhold(false));
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
    let Some(own) = &vcpu.own else {
        return false;
    };
    if own.filter.owns(value & 0x3ff) {
        gic::own::deactivate(value);
    }
    true
}

/// The vCPU is of such a VM, and its stage 2 is away: what it ran into may be that.
#[inline(always)]
pub fn is_gone(vcpu: &Vcpu) -> bool {
    vcpu.own.is_some() && gic::own::is_gone(vcpu.index)
}

/// There is no Group 0 interrupt of EL2's.
pub fn acknowledge(_: &Vcpu) -> Taken {
    gic::acknowledge_group0()
}

/// EL2 takes interrupts of one group only.
pub const fn poll(_: &mut Vcpu) -> bool {
    false
}

/// The guest has come to EL2, by an exception of this class, because its stage 2 is away.
#[inline(always)]
pub fn has_come_back(vcpu: &Vcpu, class: u64) -> bool {
    class == ec::FETCH_LOWER && is_gone(vcpu)
}

/// The guest has come to EL2 because its stage 2 is away. Undoes what the SGI did to it, gives it back and does what the
/// pCPU was wanted for. If another pCPU is still at it after a while, the guest runs into it once more.
pub fn come_back(vcpu: &mut Vcpu) {
    if !is_gone(vcpu) {
        return;
    }
    if let Some((pc, spsr)) = cpu::entered().before() {
        cpu::go_back(pc, spsr);
    }
    // What the other one still has to do is short, and without a branch back.
    for _ in 0..PATIENCE {
        if gic::own::give_back(vcpu.index) {
            mailbox::open(vcpu);
            sched::mail(vcpu);
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
    let guaranteed = |own: &Own| own.reclaim == Reclaim::Guaranteed;
    if !vcpu.own.as_ref().is_some_and(guaranteed) {
        return false;
    }
    // Whoever takes its stage 2 away from now on sends the SGI afterwards, which ends the sleep.
    if is_gone(vcpu) || gic::own::is_signalled() {
        return true;
    }
    if gic::own::lets_kick_through() {
        gic::own::route_to_el2(true);
        boot::el2_wait(vcpu.index);
        gic::own::route_to_el2(false);
        return true;
    }
    if let Some(own) = &mut vcpu.own {
        own.hide(&vcpu.gic);
    }
    if !boot::el2_poll(vcpu) {
        boot::el2_wait(vcpu.index);
        boot::el2_poll(vcpu);
    }
    // If that is the end of the VM, EL2 keeps the interface.
    lifecycle::attend(vcpu);
    if let Some(own) = &mut vcpu.own {
        own.show(&vcpu.gic);
    }
    true
}
