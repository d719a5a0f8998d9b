//! Where a service thread reaches what: its own state, and the memory of the VMs that have a device of it or serve one.
//! EL2 maps it by this on the pCPU of the service thread, and the memory of managers where their vCPUs may run, too; the planner counts the
//! pages by it.

use bulkhead_abi::plan::{
    ACCESS_UNCACHED, ALL_COLOURS, MAX_ROWS, MAX_VIRTIO_DEVICES, PAGE, Region, RegionKind,
    ServiceThread,
};
use zerocopy::FromZeros;

use crate::plan::Plan;
use crate::stage2::pages_needed;

/// Where a service thread's map starts in EL2's address space: its own state first.
pub const START: u64 = 0x20_4000_0000;
/// Limit of that map: EL2's address space.
const LIMIT: u64 = 1 << 39;
/// What one root entry maps. Each region has root entries of its own, so that no table is shared.
const GIB: u64 = 1 << 30;
/// Pages of the state of a service thread itself.
pub const THREAD_PAGES: u64 = 2;
/// Pages of the state of each of its devices.
pub const DEVICE_PAGES: u64 = 2;
/// Bytes of what is known of each slot.
pub const SLOT_BYTES: u64 = 24;
/// Bytes for the head of a chain that is to be posted anew, for each slot.
pub const AGAIN_BYTES: u64 = 2;

/// A region of a VM as a service thread reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// Row of the region in the plan.
    pub row: usize,
    /// The region, with the virtual address in place of the IPA.
    pub region: Region,
}

/// The devices of a service thread, with their rows.
pub fn devices<'a>(
    plan: &'a Plan<'a>,
    service: usize,
) -> impl Iterator<Item = (usize, &'a bulkhead_abi::plan::VirtioDevice)> {
    let rows = (0..MAX_VIRTIO_DEVICES).zip(plan.virtio_devices());
    rows.filter(move |(_, device)| usize::from(device.service) == service)
}

/// Whether a service thread reaches the memory of a VM, which has a device of it or serves one.
pub(crate) fn reaches(plan: &Plan, service: usize, vm: u16) -> bool {
    is_vm_reached(plan, Some(service), vm)
}

/// The same of a service thread, or of any.
fn is_vm_reached(plan: &Plan, service: Option<usize>, vm: u16) -> bool {
    plan.virtio_devices().iter().any(|device| {
        let serves = service.is_none_or(|service| usize::from(device.service) == service);
        let backend = plan.backends().get(usize::from(device.backend));
        serves && (device.vm == vm || backend.is_some_and(|backend| backend.vm == vm))
    })
}

/// Pages of a device: its state, then for each queue its arrays, of [`SLOT_BYTES`] and [`AGAIN_BYTES`] for each slot.
pub fn device_pages(plan: &Plan, device: usize) -> u64 {
    let queues = plan.virtqueues_of(device).iter();
    queues.fold(DEVICE_PAGES, |sum, queue| {
        let bytes = u64::from(queue.slots).wrapping_mul(SLOT_BYTES.wrapping_add(AGAIN_BYTES));
        sum.wrapping_add(bytes.div_ceil(PAGE))
    })
}

/// Pages of the state of a service thread: its own, then those of its devices in their order.
pub fn state_pages(plan: &Plan, service: usize) -> u64 {
    devices(plan, service).fold(THREAD_PAGES, |sum, (row, _)| {
        sum.wrapping_add(device_pages(plan, row))
    })
}

/// The state as a region of the map, where its place is this.
pub fn state(place: Region) -> Region {
    Region {
        kind: RegionKind::Ram as u16,
        ipa: START,
        ..place
    }
}

/// Tables for so many pages of state, which no block can map.
pub fn tables_of_state(pages: u64) -> u64 {
    let place = Region {
        pa: PAGE,
        size: pages.wrapping_mul(PAGE),
        colours: ALL_COLOURS,
        ..Region::new_zeroed()
    };
    pages_needed(&[state(place)]).wrapping_sub(1)
}

/// Whether a region is memory that a device of its VM reaches. The service thread's map is cacheable; memory that no VM caches is left out, so
/// that no two have it with different attributes.
const fn is_reached(region: &Region) -> bool {
    let memory = region.kind == RegionKind::Ram as u16 || region.kind == RegionKind::Shared as u16;
    memory && region.access & ACCESS_UNCACHED == 0
}

/// The regions that service threads reach, ascending by virtual address, which is one on all pCPUs. `None` where the address space ends.
fn all_reached<'a>(plan: &'a Plan<'a>) -> impl Iterator<Item = Option<Reached>> {
    let mut next = START.wrapping_add(GIB);
    let rows = (0..MAX_ROWS).zip(plan.regions);
    rows.filter(|(_, region)| is_reached(region) && is_vm_reached(plan, None, region.vm))
        .map(move |(row, region)| {
            let at = next.wrapping_add(region.pa % GIB);
            let end = at.checked_add(region.size).filter(|end| *end <= LIMIT)?;
            next = end.wrapping_add(GIB.wrapping_sub(1)) & !GIB.wrapping_sub(1);
            Some(Reached {
                row,
                region: Region { ipa: at, ..*region },
            })
        })
}

/// Those that one of them reaches.
pub fn reached<'a>(plan: &'a Plan<'a>, service: usize) -> impl Iterator<Item = Reached> {
    let all = all_reached(plan).map_while(|found| found);
    all.filter(move |found| reaches(plan, service, found.region.vm))
}

/// The root entries by which a region is mapped that lies at an address: they are its own.
pub const fn root_entries(at: u64, size: u64) -> core::ops::Range<usize> {
    let end = at.wrapping_add(size);
    (at / GIB) as usize..end.div_ceil(GIB) as usize
}

/// Pages of the page pool for a service thread ([`ServiceThread::pages`]): its state, a root, and the tables below. `None` if the regions of
/// all do not fit the address space.
pub fn pages(plan: &Plan, service: usize) -> Option<u64> {
    let own = state_pages(plan, service);
    let mut pages = own.wrapping_add(1).wrapping_add(tables_of_state(own));
    for found in all_reached(plan) {
        let region = found?.region;
        if reaches(plan, service, region.vm) {
            let below = pages_needed(core::slice::from_ref(&region)).wrapping_sub(1);
            pages = pages.wrapping_add(below);
        }
    }
    Some(pages)
}

/// Whether the row of a service thread has the pages that it needs.
pub fn is_counted(plan: &Plan, service: usize, row: &ServiceThread) -> bool {
    pages(plan, service) == Some(row.pages.into())
}
