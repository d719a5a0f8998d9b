//! Debug registers of VMs that have them ([`bulkhead_core::cpu::debug`]): what is in them is on the pCPU while the vCPU runs and any of it is on.
//! A vCPU that has them is one with a full switch.

use bulkhead_abi::plan::VM_DEBUG;
use bulkhead_core::cpu::debug::{self, Debug};
use bulkhead_core::cpu::exit::SysReg;

use crate::hw::debug as hw;
use crate::plan::plan;
use crate::profile::IO;
use crate::vcpu::Vcpu;

/// The debug registers of a vCPU, and the vectors of its pCPU while they are not the usual ones.
#[derive(Debug)]
pub struct Debugging {
    registers: Debug,
    usual_vectors: Option<u64>,
}

impl Debugging {
    /// Those of a vCPU of a VM, on this pCPU, if it has any.
    pub fn of(vm: usize) -> Option<Self> {
        let has = plan().vms.get(vm)?.flags & VM_DEBUG != 0;
        has.then(|| Self {
            registers: Debug::new(hw::features()),
            usual_vectors: None,
        })
    }

    /// Gives the pCPU what is on.
    fn load(&mut self) {
        if self.registers.is_active() {
            hw::load(&self.registers);
        }
        if self.registers.steps() {
            let usual = hw::vectors();
            self.usual_vectors = Some(usual);
            hw::take_vectors(true, usual);
        }
    }

    /// Leaves the pCPU with nothing on.
    fn put(&mut self) {
        if self.registers.is_active() {
            hw::off();
        }
        if let Some(usual) = self.usual_vectors.take() {
            hw::take_vectors(false, usual);
        }
    }
}

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
        debugging.put();
        debugging.registers.reset();
    }
}

/// Performs an access to a debug register. `None`: it is none, or the VM has none; `Some(false)`: it is undefined.
#[inline(never)]
pub fn access(vcpu: &mut Vcpu, trapped: SysReg) -> Option<bool> {
    let register = debug::register(trapped.register)?;
    let value = vcpu.frame.get(trapped.gpr);
    let debugging = of(vcpu)?;
    if trapped.read {
        let value = debugging.registers.read(register);
        if let Some(value) = value {
            vcpu.frame.set(trapped.gpr, value);
        }
        return Some(value.is_some());
    }
    debugging.put();
    let done = debugging.registers.write(register, value);
    debugging.load();
    Some(done.is_some())
}
