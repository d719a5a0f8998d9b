//! Rules about VMs and their vCPUs.

use bulkhead_abi::plan::{
    Class, Crash, IPA_BITS, MAX_SPIS, MAX_VCPUS_PER_VM, NAME, TableId, VM_DETERMINISTIC, Vm,
};

use super::board::REDISTRIBUTOR;
use crate::plan::span::{Span, aligned};
use crate::plan::view::{OfVm, Plan};
use crate::plan::violation::{At, Check, Invariant};

/// Alignment of the frames of a virtual GIC.
const VGIC_FRAME: u64 = 64 * 1024;

/// A span inside the IPA space whose start is a multiple of `unit`.
pub(super) fn ipa_span(base: u64, size: u64, unit: u64) -> Option<Span> {
    Span::new(base, size).filter(|span| aligned(base, unit) && span.end <= 1 << IPA_BITS)
}

/// The frames of a VM's virtual GIC: distributor and redistributors.
pub(super) fn vgic_frames(vm: &Vm, vcpus: usize) -> [Option<Span>; 2] {
    let redistributors = (vcpus as u64).wrapping_mul(REDISTRIBUTOR);
    [
        ipa_span(vm.gicd, VGIC_FRAME, VGIC_FRAME),
        ipa_span(vm.gicr, redistributors, VGIC_FRAME),
    ]
}

/// Letters, digits and '-', at least one, then zeros.
fn name_is_sound(name: &[u8; NAME]) -> bool {
    let len = name.iter().position(|&byte| byte == 0).unwrap_or(NAME);
    let letters = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
    len > 0 && name.iter().take(len).all(letters) && name.iter().skip(len).all(|&byte| byte == 0)
}

impl Plan<'_> {
    /// VMs, each by itself and against the others.
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
            at.ensure(vm.crash == Crash::Halt as u16, Invariant::VmCrash)?;
            at.ensure(vm.flags & !VM_DETERMINISTIC == 0, Invariant::VmFlags)?;
            at.ensure(
                usize::from(vm.vmid) == row.wrapping_add(1),
                Invariant::VmVmid,
            )?;
            let spis = vm.spis % 32 == 0 && vm.spis <= MAX_SPIS;
            at.ensure(spis, Invariant::VgicSpis)?;

            let vcpus = self.vcpus_of(row).len();
            let count = 1 <= vcpus && vcpus <= MAX_VCPUS_PER_VM;
            at.ensure(count, Invariant::VcpuCount)?;
            let [Some(gicd), Some(gicr)] = vgic_frames(vm, vcpus) else {
                return Err(at.breaks(Invariant::VgicFrame));
            };
            at.ensure(!gicd.overlaps(gicr), Invariant::IpaOverlap)?;
        }
        Ok(())
    }

    /// vCPUs and where they run.
    pub(super) fn check_vcpus(&self) -> Check {
        let mut before = None;
        let mut number = 0_u64;
        for (row, vcpu) in self.vcpus.iter().enumerate() {
            let at = At::row(TableId::Vcpus, row);
            at.ensure(vcpu.reserved == 0, Invariant::ReservedZero)?;
            let placed = self
                .pcpus
                .get(usize::from(vcpu.pcpu))
                .is_some_and(|pcpu| usize::from(pcpu.vcpu) == row);
            at.ensure(placed, Invariant::VcpuPlacement)?;
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

    /// Where VMs start and what they get.
    pub(super) fn check_starts(&self) -> Check {
        for (row, vm) in self.vms.iter().enumerate() {
            let at = At::row(TableId::Vms, row);
            let loads = self.loads_of(row);
            let entry = aligned(vm.entry, 4)
                && loads
                    .iter()
                    .filter_map(|load| Span::new(load.ipa, load.size))
                    .any(|load| load.has(vm.entry));
            at.ensure(entry, Invariant::VmEntry)?;
            let boot_arg = vm.boot_arg == 0 || loads.iter().any(|load| load.ipa == vm.boot_arg);
            at.ensure(boot_arg, Invariant::VmBootArg)?;
        }
        Ok(())
    }
}
