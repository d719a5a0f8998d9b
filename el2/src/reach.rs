//! Memory of VMs as EL2 reaches it: on the pCPU of the service thread that serves their devices, and that of managers also where their vCPUs may run
//! (`bulkhead_core::virtio::pages`). A region has one address on all pCPUs that map it.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};

use bulkhead_abi::plan::{ACCESS_WRITE, MAX_ROWS, Region};
use bulkhead_core::virtio::memory::{Access, At, Space};
use bulkhead_core::virtio::pages::Reached;

use crate::plan::plan;

/// The virtual address of each region, by row of the plan; 0 for those that nobody reaches. Written while only the boot pCPU runs.
static ADDRESSES: [AtomicU64; MAX_ROWS] = [const { AtomicU64::new(0) }; MAX_ROWS];

/// Notes where a region is mapped, when the board starts.
pub fn note(found: &Reached) {
    ADDRESSES[found.row % MAX_ROWS].store(found.region.ipa, Ordering::Relaxed);
}

/// The memory that a VM may name in its rings: its RAM, and shared memory as it may access it itself.
pub struct VmSpace<'a> {
    regions: &'static [Region],
    addresses: &'static [AtomicU64],
    /// What was found last, where the next one mostly lies as well.
    recent: &'a Cell<Found>,
}

/// A region as a VM's rings may name it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    ipa: u64,
    /// 0: there is none.
    size: u64,
    address: u64,
    may_write: bool,
}

impl Found {
    /// None.
    pub const NONE: Self = Self {
        ipa: 0,
        size: 0,
        address: 0,
        may_write: false,
    };

    /// The address `offset` bytes behind its start, and how many bytes lie behind it; 0 if there is none, or it may not be written.
    #[inline(always)]
    fn behind(&self, offset: u64, writes: bool) -> (u64, u64) {
        if offset < self.size && (self.may_write || !writes) {
            let at = self.address.wrapping_add(offset);
            return (at, self.size.wrapping_sub(offset));
        }
        (0, 0)
    }
}

/// The regions of a VM, and where they are.
pub type Regions = (&'static [Region], &'static [AtomicU64]);

/// Those of a VM.
pub fn regions_of(vm: u16) -> Regions {
    let first = plan().regions.partition_point(|region| region.vm < vm);
    let addresses = ADDRESSES.get(first..).unwrap_or_default();
    (plan().regions_of(usize::from(vm)), addresses)
}

/// Where the regions of a VM are that somebody reaches, and their sizes.
pub fn places(vm: u16) -> impl Iterator<Item = (u64, u64)> {
    let (regions, addresses) = regions_of(vm);
    let places = addresses.iter().map(|at| at.load(Ordering::Relaxed));
    let reached = places.zip(regions).filter(|(at, _)| *at != 0);
    reached.map(|(at, region)| (at, region.size))
}

impl<'a> VmSpace<'a> {
    /// The memory of a VM with these regions.
    #[inline(always)]
    pub const fn of((regions, addresses): Regions, recent: &'a Cell<Found>) -> Self {
        Self {
            regions,
            addresses,
            recent,
        }
    }

    /// The virtual address of an IPA, and how many bytes from there on lie behind one another; 0 if the VM may not access it so.
    #[inline(never)]
    fn find(&self, ipa: u64, writes: bool) -> (u64, u64) {
        let found = self.recent.get();
        let offset = ipa.wrapping_sub(found.ipa);
        if offset < found.size {
            return found.behind(offset, writes);
        }
        self.find_anew(ipa, writes)
    }

    /// The same in another region than that before.
    #[inline(never)]
    fn find_anew(&self, ipa: u64, writes: bool) -> (u64, u64) {
        let found = self.region(ipa);
        self.recent.set(found);
        found.behind(ipa.wrapping_sub(found.ipa), writes)
    }

    /// The region of an IPA. A VM's regions are in the order of their IPAs (invariant `table-order`), and may be many.
    fn region(&self, ipa: u64) -> Found {
        let behind = self.regions.partition_point(|region| region.ipa <= ipa);
        let index = behind.wrapping_sub(1);
        let (Some(region), Some(address)) = (self.regions.get(index), self.addresses.get(index))
        else {
            return Found::default();
        };
        match address.load(Ordering::Relaxed) {
            0 => Found::default(),
            address => Found {
                ipa: region.ipa,
                size: region.size,
                address,
                may_write: region.access & ACCESS_WRITE != 0,
            },
        }
    }
}

impl Space for VmSpace<'_> {
    #[inline(always)]
    fn reach(&self, ipa: u64, access: Access) -> Option<(At, u64)> {
        let (address, bytes) = self.find(ipa, access == Access::Write);
        (address != 0).then_some((At::new(address), bytes))
    }
}

/// Returns the virtual address of an IPA in a VM's RAM.
pub fn address_in(vm: u16, ipa: u64) -> At {
    let recent = Cell::default();
    let space = VmSpace::of(regions_of(vm), &recent);
    let found = space.reach(ipa, Access::Write);
    found.map_or(At::new(0), |(at, _)| at)
}
