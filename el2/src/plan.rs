//! Lookups in the plan.

use bulkhead_abi::plan::{DeviceKind, RegionKind, VM_OWN_PTIMER};
use bulkhead_core::colours::{self, Piece};
use bulkhead_core::devices::{pl031, watchdog};

pub use crate::hw::plan::plan;
use crate::vm::vm;

/// The INTID of the EL1 physical timer in every VM (BSA: PPI 30).
pub const PHYSICAL_TIMER: u32 = 30;

/// Returns the rows of a VM's vCPUs in the plan.
pub fn ids_of(index: usize) -> core::ops::Range<usize> {
    let first = vm(index).first_vcpu();
    first..first.wrapping_add(plan().vcpus_of(index).len())
}

/// Returns the row of a vCPU in the plan, by the index of its VM and its number in the VM.
pub fn id_of(index: usize, vcpu: usize) -> Option<usize> {
    let id = vm(index).first_vcpu().wrapping_add(vcpu);
    let row = plan().vcpus.get(id)?;
    (usize::from(row.vm) == index).then_some(id)
}

/// Returns the number of a service thread among the vCPUs' rows, behind which service threads come.
pub fn service_thread(service: usize) -> usize {
    plan().vcpus.len().wrapping_add(service)
}

/// Returns the pCPUs of all vCPUs of a VM whose vCPUs do not migrate.
pub fn pcpus_of(vm: usize) -> impl Iterator<Item = usize> {
    plan()
        .vcpus_of(vm)
        .iter()
        .map(|vcpu| usize::from(vcpu.pcpu))
}

/// Returns the physical address of an IPA in a VM's RAM, and how much of it follows there.
pub fn physical(vm: usize, ipa: u64) -> Option<Piece> {
    let mut regions = plan().regions_of(vm).iter();
    regions.find_map(|region| {
        let offset = ipa.checked_sub(region.ipa)?;
        let piece = colours::piece(region, offset)?;
        (region.kind == RegionKind::Ram as u16).then_some(piece)
    })
}

/// The place of an emulated device in a VM.
#[derive(Clone, Copy, Debug)]
pub struct DeviceFrame {
    /// The IPA; `u64::MAX` if the VM has no such device.
    pub ipa: u64,
    /// The size in bytes; 0 if the VM has no such device.
    pub size: u64,
    /// The INTID.
    pub intid: u32,
}

impl DeviceFrame {
    /// The place of a device that the VM does not have.
    pub const NOWHERE: Self = Self {
        ipa: u64::MAX,
        size: 0,
        intid: 0,
    };
}

/// Returns the place of a VM's device of a kind, which has `size` bytes.
pub fn device(vm: usize, kind: DeviceKind, size: u64) -> DeviceFrame {
    let mut rows = plan().devices_of(vm).iter();
    rows.find(|row| row.kind == kind as u16)
        .map_or(DeviceFrame::NOWHERE, |row| DeviceFrame {
            ipa: row.ipa,
            size,
            intid: u32::from(row.vintid),
        })
}

/// Returns the places of a VM's clock and watchdog.
pub fn timer_devices(vm: usize) -> [DeviceFrame; 2] {
    [
        device(vm, DeviceKind::Pl031, pl031::SIZE),
        device(vm, DeviceKind::Watchdog, watchdog::SIZE),
    ]
}

/// Whether the VM has the board's physical timer to itself.
pub fn has_ptimer(vm: usize) -> bool {
    plan()
        .vms
        .get(vm)
        .is_some_and(|row| row.flags & VM_OWN_PTIMER != 0)
}
