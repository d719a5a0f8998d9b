//! On a GICv2 no VM takes its interrupts itself in this version: the plan's proof refuses it.

use bulkhead_abi::exit::ExitClass;
use bulkhead_core::exit::Mmio;
use bulkhead_core::gppt::Common;
use bulkhead_core::monitor::Gate;

use crate::hw::gic::Gic;
use crate::vcpu::Vcpu;

/// The GIC of such a VM: there is none.
#[derive(Debug)]
pub enum Own {}

impl Own {
    /// No VM has one.
    pub const fn of(_: usize) -> Option<Self> {
        None
    }

    /// Of nothing.
    pub const fn forget(&self, _: &Gic, _: usize) {
        match *self {}
    }

    /// Of nothing.
    pub const fn reset(&mut self, _: &Gic) {
        match *self {}
    }

    /// Of nothing.
    pub const fn look(&self, _: &Gic, _: bool, _: u64) -> u32 {
        match *self {}
    }

    /// Of nothing.
    pub const fn gate(&self, _: u64) -> Gate {
        match *self {}
    }

    /// Of nothing.
    pub const fn hide(&mut self) {
        match *self {}
    }

    /// Of nothing.
    pub const fn show(&self) {
        match *self {}
    }
}

/// None is such a VM's.
pub const fn access(_: &mut Vcpu, _: &Mmio) -> Option<ExitClass> {
    None
}

/// It is none of such a VM.
pub const fn send_sgi(_: &Vcpu, _: u64, _: bool) -> bool {
    false
}

/// None is such a VM's.
pub const fn common(_: &mut Vcpu, _: Common, _: bool, _: u8) -> bool {
    false
}

/// It is none of such a VM.
pub const fn deactivate(_: &Vcpu, _: u32) -> bool {
    false
}
