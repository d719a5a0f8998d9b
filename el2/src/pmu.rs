//! Performance monitors of VMs that have them ([`bulkhead_core::cpu::pmu`]), and the interrupt of the pCPU's own, which tells of their overflows
//! and of budgets that are used up. What a vCPU counts is on the pCPU while the vCPU runs there. A vCPU that has them is one with a full switch.

use bulkhead_abi::plan::VM_PMU_INTID;
use bulkhead_core::cpu::exit::SysReg;
use bulkhead_core::cpu::pmu::{self, Pmu};

use crate::hw::{cpu, pmu as hw};
use crate::plan::plan;
use crate::vcpu::Vcpu;
use crate::{bandwidth, emulated, mailbox};

/// Prepares the counters of this pCPU, if anybody counts there. Returns the interrupt by which they tell of an overflow; 0: none.
pub fn start(index: usize) -> u32 {
    let intid = plan().pcpus.get(index).map_or(0, |row| row.pmu_intid);
    if intid != 0 {
        hw::start(plan().header.board.event);
    }
    intid
}

/// Whether an interrupt is that of the counters of a pCPU.
pub fn is_overflow(index: usize, intid: u32) -> bool {
    let row = plan().pcpus.get(index);
    row.is_some_and(|row| row.pmu_intid == intid)
}

/// A counter of this pCPU has overflowed, of the vCPU whose turn it is or of one whose turn has ended since.
#[inline(never)]
pub fn overflowed(vcpu: &mut Vcpu) {
    bandwidth::look(vcpu);
    if let Some(pmu) = of(vcpu) {
        hw::put(pmu);
        hw::load(pmu);
        follow(vcpu);
    }
}

/// Those of the vCPU, if it has any.
fn of(vcpu: &mut Vcpu) -> Option<&mut Pmu> {
    vcpu.pmu.first_mut()?.as_mut()
}

/// Part of a switch: the vCPU comes to the pCPU.
#[inline(never)]
pub fn load(vcpu: &mut Vcpu) {
    if let Some(pmu) = of(vcpu) {
        hw::load(pmu);
    }
}

/// Part of a switch: the vCPU leaves the pCPU. If the last thing that it did there was to let a counter overflow, it may have gone to sleep
/// before the interrupt was taken.
#[inline(never)]
pub fn put(vcpu: &mut Vcpu) {
    let Some(pmu) = of(vcpu) else { return };
    let before = pmu.line();
    hw::put(pmu);
    if pmu.line() != before {
        mailbox::send(vcpu.id, mailbox::OVERFLOW);
    }
}

/// Resets the registers of a vCPU that starts.
pub fn reset(vcpu: &mut Vcpu) {
    if let Some(pmu) = of(vcpu) {
        hw::put(pmu);
        pmu.reset();
        hw::load(pmu);
    }
}

/// Has the interrupt line of the vCPU follow its counters.
pub fn follow(vcpu: &mut Vcpu) {
    let up = of(vcpu).is_some_and(|pmu| pmu.line());
    if let Some(vm) = vcpu.vm()
        && vcpu.runs
    {
        let whom = emulated::line(vcpu, vm, VM_PMU_INTID, up);
        vcpu.notify(whom);
    }
}

/// Whether EL1 traps an access to a register that was not performed.
pub fn is_refused(vcpu: &mut Vcpu, trapped: SysReg) -> bool {
    let register = pmu::register(trapped.register);
    let (Some(register), Some(pmu)) = (register, of(vcpu)) else {
        return false;
    };
    cpu::came_from_el0() && !pmu.is_user(register, trapped.read)
}

/// Performs an access to a register. `None`: it is none of theirs, or the VM has none; `Some(false)`: it is undefined, or [refused](is_refused).
#[inline(never)]
pub fn access(vcpu: &mut Vcpu, trapped: SysReg) -> Option<bool> {
    let value = vcpu.frame.get(trapped.gpr);
    let pmu = of(vcpu)?;
    let register = pmu::register(trapped.register)?;
    let at_el0 = cpu::came_from_el0();
    if at_el0 && !pmu.is_user(register, trapped.read) {
        return Some(false);
    }
    let before = pmu.line();
    let done = if trapped.read {
        hw::look(pmu, pmu.read_by(register));
        pmu.read(register)
    } else {
        hw::put(pmu);
        let done = pmu.write(register, value, at_el0).map(|()| value);
        hw::load(pmu);
        done
    };
    let changed = pmu.line() != before;
    if let Some(value) = done
        && trapped.read
    {
        vcpu.frame.set(trapped.gpr, value);
    }
    if changed {
        follow(vcpu);
    }
    Some(done.is_some())
}
