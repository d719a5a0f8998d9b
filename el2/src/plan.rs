//! Lookups in the plan.

use bulkhead_abi::plan::{DeviceKind, Doorbell, RegionKind, VM_OWN_PTIMER};
use bulkhead_core::colours::{self, Piece};
use bulkhead_core::devices::{pl031, watchdog};

pub use crate::hw::plan::plan;

/// The INTID of the EL1 physical timer in every VM (BSA: PPI 30).
pub const PHYSICAL_TIMER: u32 = 30;

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

/// The doorbells that a VM rings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bells {
    /// The row of the first.
    pub first: usize,
    /// The rows.
    pub rows: &'static [Doorbell],
}

impl Bells {
    /// Returns those of a VM.
    pub fn of(vm: usize) -> Self {
        let all = plan().doorbells;
        let first = all.partition_point(|row| usize::from(row.vm) < vm);
        let rows = all.get(first..).unwrap_or_default();
        let len = rows.partition_point(|row| usize::from(row.vm) == vm);
        Self {
            first,
            rows: rows.get(..len).unwrap_or_default(),
        }
    }

    /// The pages by which they are rung.
    pub fn pages(&self) -> impl Iterator<Item = u64> {
        self.rows.iter().map(|row| row.ipa)
    }
}

/// The pages by which a VM rings as a backend.
pub fn bells_of(vm: usize) -> impl Iterator<Item = u64> {
    let own = plan().backends().iter();
    own.filter(move |row| usize::from(row.vm) == vm)
        .map(|row| row.bell)
}
