//! The parts that emulated devices have in common: the outcome of an access, and their interrupt
//! lines.

use bulkhead_abi::exit::ExitClass;
use bulkhead_core::vgic::Notify;

use crate::vcpu::Vcpu;
use crate::vm::Vm;

/// The outcome of an access.
pub enum Done {
    /// The access is done.
    Yes(ExitClass),
    /// Another vCPU has to answer first, or is using the device: the guest repeats the access.
    NotYet(ExitClass),
    /// Nothing is emulated at this address.
    Nothing,
}

impl Done {
    /// Returns the outcome of an access to a device of which the class is known.
    #[inline(always)]
    pub const fn of(class: ExitClass, done: bool) -> Self {
        if done {
            Self::Yes(class)
        } else {
            Self::NotYet(class)
        }
    }
}

/// Sets the level of the interrupt line of an emulated device, or of this vCPU's emulated timer.
pub fn line(vcpu: &mut Vcpu, vm: &Vm, intid: u32, up: bool) -> Notify {
    if vcpu.runs {
        vcpu.vgic.set_line(&vm.dist, &mut vcpu.gic, intid, up)
    } else {
        vm.dist.post_line(intid, up, vcpu.number)
    }
}
