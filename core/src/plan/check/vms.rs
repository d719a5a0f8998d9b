//! Rules about VMs and their vCPUs.

use bulkhead_abi::plan::{
    Class, Crash, IPA_BITS, MAX_SPIS, MAX_VCPUS_PER_VM, NAME, NONE, PAGE, TableId, VM_BACKGROUND,
    VM_DEBUG, VM_DETERMINISTIC, VM_LOCKED, VM_OWN_PTIMER, VM_PMU, VM_SHARES_COLOURS, VM_TIME_STOPS,
    VM_WAITS, Vm,
};

use super::board::{GICC, REDISTRIBUTOR};
use super::cpu::{SDEI, VGIC};
use crate::plan::span::{Span, aligned};
use crate::plan::view::{IO, OfVm, Plan};
use crate::plan::violation::{At, Check, Invariant};

/// Alignment of the frames of a virtual GIC.
const VGIC_FRAME: u64 = 64 * 1024;
/// Mask of the flags that are defined for VMs.
const FLAGS: u16 = VM_DETERMINISTIC
    | VM_OWN_PTIMER
    | VM_TIME_STOPS
    | VM_BACKGROUND
    | VM_WAITS
    | VM_LOCKED
    | VM_SHARES_COLOURS
    | VM_DEBUG
    | VM_PMU;

/// A span inside the IPA space whose start is a multiple of `unit`; `None` if it is not.
pub(super) fn ipa_span(base: u64, size: u64, unit: u64) -> Option<Span> {
    Span::new(base, size).filter(|span| aligned(base, unit) && span.end <= 1 << IPA_BITS)
}

/// The frames of the redistributors of a VM's virtual GICv3, one for each vCPU.
fn redistributors(vm: &Vm, vcpus: usize) -> Option<Span> {
    let size = (vcpus as u64).wrapping_mul(REDISTRIBUTOR);
    ipa_span(vm.gicr, size, VGIC_FRAME)
}

/// Whether a name is letters, digits and '-', at least one, then zeros.
fn name_is_sound(name: &[u8; NAME]) -> bool {
    let len = name.iter().position(|&byte| byte == 0).unwrap_or(NAME);
    let letters = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
    len > 0 && name.iter().take(len).all(letters) && name.iter().skip(len).all(|&byte| byte == 0)
}

impl Plan<'_> {
    /// Checks the VMs, each by itself and against the others.
    pub(super) fn check_vms(&self) -> Check {
        for (row, vm) in self.vms.iter().enumerate() {
            let at = At::row(TableId::Vms, row);
            at.ensure(name_is_sound(&vm.name), Invariant::VmName)?;
            if let Some(twin) = self
                .vms
                .iter()
                .take(row)
                .position(|other| other.name == vm.name)
            {
                return Err(at.and(twin).breaks(Invariant::VmNameUnique));
            }
            at.ensure(vm.class <= Class::HardRealtime as u16, Invariant::VmClass)?;
            self.check_crash(at, row, vm)?;
            at.ensure(vm.flags & !FLAGS == 0, Invariant::VmFlags)?;
            at.ensure(self.may_debug(vm), Invariant::VmDebug)?;
            at.ensure(self.may_count(vm), Invariant::VmPmu)?;
            let resets = (vm.resets == 0) == (vm.reset_seconds == 0);
            at.ensure(resets, Invariant::VmReset)?;
            at.ensure(
                usize::from(vm.vmid) == row.wrapping_add(1),
                Invariant::VmVmid,
            )?;
            let spis = vm.spis % 32 == 0 && vm.spis <= MAX_SPIS;
            at.ensure(spis, Invariant::VgicSpis)?;

            let vcpus = self.vcpus_of(row).len();
            let count = (1..=MAX_VCPUS_PER_VM).contains(&vcpus);
            at.ensure(count, Invariant::VcpuCount)?;
            self.check_vgic(at, vm, vcpus)?;
        }
        Ok(())
    }

    /// Whether a VM has debug registers that EL2 does not need itself, or none.
    const fn may_debug(&self, vm: &Vm) -> bool {
        vm.flags & VM_DEBUG == 0 || self.header.image.profile >= IO && vm.reclaim != SDEI
    }

    /// Whether EL2 is told of the overflows of a VM's performance monitors, or the VM has none.
    const fn may_count(&self, vm: &Vm) -> bool {
        vm.flags & VM_PMU == 0 || self.header.image.profile >= IO && vm.interrupts == VGIC
    }

    /// Checks the crash policy of VM number `row`.
    fn check_crash(&self, at: At, row: usize, vm: &Vm) -> Check {
        at.ensure(vm.crash <= Crash::Notify as u16, Invariant::VmCrash)?;
        let limit = vm.restarts > 0 && vm.restart_seconds > 0;
        let none = vm.restarts == 0 && vm.restart_seconds == 0;
        let restarts = vm.crash == Crash::Restart as u16;
        at.ensure(if restarts { limit } else { none }, Invariant::VmRestart)?;
        let notified = if vm.crash == Crash::Notify as u16 {
            usize::from(vm.notify) < self.vms.len() && usize::from(vm.notify) != row
        } else {
            vm.notify == NONE
        };
        at.ensure(notified, Invariant::VmNotify)
    }

    /// Checks the frames of a VM's virtual GIC.
    fn check_vgic(&self, at: At, vm: &Vm, vcpus: usize) -> Check {
        let gicd = ipa_span(vm.gicd, VGIC_FRAME, VGIC_FRAME);
        let (other, interface) = if self.is_gicv2() {
            (vm.gicr, ipa_span(vm.gicc, GICC, VGIC_FRAME))
        } else {
            (vm.gicc, redistributors(vm, vcpus))
        };
        let (Some(gicd), Some(interface), 0) = (gicd, interface, other) else {
            return Err(at.breaks(Invariant::VgicFrame));
        };
        at.ensure(!gicd.overlaps(interface), Invariant::IpaOverlap)
    }

    /// The frames of a VM's virtual GIC that EL2 emulates. The first page of the CPU interface of a
    /// GICv2 is mapped instead.
    pub(super) fn emulated_frames(&self, vm: &Vm, vcpus: usize) -> [Option<Span>; 2] {
        let gicd = ipa_span(vm.gicd, VGIC_FRAME, VGIC_FRAME);
        let other = if self.is_gicv2() {
            ipa_span(vm.gicc.wrapping_add(PAGE), GICC.wrapping_sub(PAGE), PAGE)
        } else {
            redistributors(vm, vcpus)
        };
        [gicd, other]
    }

    /// Checks the MPIDR values of vCPUs, which are their numbers.
    pub(super) fn check_vcpus(&self) -> Check {
        let mut before = None;
        let mut number = 0_u64;
        for (row, vcpu) in self.vcpus.iter().enumerate() {
            let at = At::row(TableId::Vcpus, row);
            let free = vcpu.events == 0 && vcpu.events_period == 0;
            at.ensure(free || self.keeps_budgets(), Invariant::ReservedZero)?;
            number = if before == Some(vcpu.vm()) {
                number.wrapping_add(1)
            } else {
                0
            };
            before = Some(vcpu.vm());
            at.ensure(vcpu.mpidr == number, Invariant::VcpuMpidr)?;
        }
        Ok(())
    }

    /// Checks the entry points and boot arguments of VMs.
    pub(super) fn check_starts(&self) -> Check {
        for (row, vm) in self.vms.iter().enumerate() {
            let at = At::row(TableId::Vms, row);
            let payloads = self.payloads_of(row);
            let entry = aligned(vm.entry, 4)
                && payloads
                    .iter()
                    .filter_map(|payload| Span::new(payload.ipa, payload.size))
                    .any(|payload| payload.has(vm.entry));
            at.ensure(entry, Invariant::VmEntry)?;
            let boot_arg =
                vm.boot_arg == 0 || payloads.iter().any(|payload| payload.ipa == vm.boot_arg);
            at.ensure(boot_arg, Invariant::VmBootArg)?;
        }
        Ok(())
    }
}
