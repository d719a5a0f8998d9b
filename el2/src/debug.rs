//! Debug registers of VMs that have them ([`bulkhead_core::cpu::debug`]): what is in them is on the pCPU while the vCPU runs and any of it is on.
//! A vCPU that has them is one with a full switch.

use bulkhead_abi::plan::VM_DEBUG;
use bulkhead_core::cpu::debug;
use bulkhead_core::cpu::exit::SysReg;

use crate::hw::debug::{self as hw, Debugging};
use crate::plan::plan;
use crate::profile::IO;
use crate::vcpu::Vcpu;

/// Those of the vCPU, if it has any.
fn of(vcpu: &mut Vcpu) -> Option<&mut Debugging> {
    vcpu.debugging.first_mut()?.as_mut()
}

/// Opens the way for debug exceptions on this pCPU, if a VM has debug registers.
pub fn start() {
    if IO && plan().vms.iter().any(|vm| vm.flags & VM_DEBUG != 0) {
        hw::open();
    }
}

/// Part of a switch: the vCPU comes to the pCPU.
#[inline(never)]
pub fn load(vcpu: &mut Vcpu) {
    if let Some(debugging) = of(vcpu) {
        debugging.load();
    }
}

/// Part of a switch: the vCPU leaves the pCPU.
#[inline(never)]
pub fn put(vcpu: &mut Vcpu) {
    if let Some(debugging) = of(vcpu) {
        debugging.put();
    }
}

/// Resets the registers of a vCPU that starts.
pub fn reset(vcpu: &mut Vcpu) {
    if let Some(debugging) = of(vcpu) {
        debugging.reset();
    }
}

/// Performs an access to a debug register. `None`: it is none, or the VM has none; `Some(false)`: it is undefined.
#[inline(never)]
pub fn access(vcpu: &mut Vcpu, trapped: SysReg) -> Option<bool> {
    let register = debug::register(trapped.register)?;
    let value = vcpu.frame.get(trapped.gpr);
    let debugging = of(vcpu)?;
    if trapped.read {
        let value = debugging.read(register);
        if let Some(value) = value {
            vcpu.frame.set(trapped.gpr, value);
        }
        return Some(value.is_some());
    }
    Some(debugging.write(register, value))
}
