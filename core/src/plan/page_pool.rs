//! Where the parts of the page pool lie: EL2's own pages in EL2's colours ([`Image::colours`](bulkhead_abi::plan::Image::colours)), each VM's tables
//! in those of its RAM. All places are offsets in the image, which starts at a multiple of 64 pages.

use bulkhead_abi::plan::{
    ALL_COLOURS, PAGE, PCPU_PAGES, Region, VCPU_PAGES, VIRTIO_REGISTERS_PAGE, VM_PAGES,
};
use zerocopy::FromZeros;

use super::view::{IO, Plan};
use crate::stage2::{Placement, colours_of};
use crate::virtio::pages::state_pages;
use crate::{colours, stage2};

/// The parts of the page pool that are EL2's own. The tables of VMs lie behind the first one, or among its pages if they have other colours.
#[derive(Clone, Copy, Debug)]
pub struct PagePool {
    /// [`PCPU_PAGES`] for each pCPU, [`VCPU_PAGES`] for each vCPU and service thread, [`VM_PAGES`] for each VM.
    pub threads: Region,
    /// A page for each virtio device: its state.
    pub virtio: Region,
    /// A page for each virtio device: its registers. Nobody caches these, so that they have no colour.
    pub registers: Region,
    /// Where the first service thread's places begin.
    services: Placement,
    /// The EL2 binary and the plan, once EL2 has moved into its colours; empty if it has all.
    pub image: Region,
    /// The end of the page pool.
    pub end: u64,
}

/// Gives EL2 a part of so many pages.
fn part(places: &mut Placement, pages: u64, colours: u64) -> Option<Region> {
    match pages {
        0 => Some(Region::new_zeroed()),
        _ => places.next(pages, colours),
    }
}

/// The address of a page of a part.
pub fn page_of(part: &Region, number: u64) -> u64 {
    let offset = number.wrapping_mul(PAGE);
    if part.colours == ALL_COLOURS {
        return part.pa.wrapping_add(offset);
    }
    colours::piece(part, offset).map_or(0, |piece| piece.pa)
}

impl<'a> Plan<'a> {
    /// Pages of the first part of the page pool.
    fn thread_pages<const PROFILE: u32>(&self) -> u64 {
        let pages = |things: usize, pages: u32| (things as u64).wrapping_mul(pages.into());
        let threads = match PROFILE {
            IO.. => self.service_threads().len(),
            _ => 0,
        };
        pages(self.pcpus.len(), PCPU_PAGES)
            .wrapping_add(pages(self.vcpus.len().wrapping_add(threads), VCPU_PAGES))
            .wrapping_add(pages(self.vms.len(), VM_PAGES))
    }

    /// The parts of the page pool. `vm` is told where the tables of each VM lie. `None` if anything lies beyond the last address, or has no colour.
    pub fn page_pool<const PROFILE: u32>(
        &self,
        mut vm: impl FnMut(usize, &Region),
    ) -> Option<PagePool> {
        let image = &self.header.image;
        let own = image.colours;
        let mut places = Placement::from(image.page_pool_offset);
        let threads = part(&mut places, self.thread_pages::<PROFILE>(), own)?;
        for (number, row) in self.vms.iter().enumerate() {
            let colours = colours_of(self.regions_of(number));
            vm(number, &places.next(row.s2_pages.into(), colours)?);
        }
        let mut virtio = Region::new_zeroed();
        let mut registers = Region::new_zeroed();
        let mut services = places;
        if PROFILE >= IO {
            let devices = self.virtio_devices().len() as u64;
            virtio = part(&mut places, devices, own)?;
            registers = part(&mut places, devices, ALL_COLOURS)?;
            services = places;
            for service in 0..self.service_threads().len() {
                let _ = self.service_parts(&mut places, service)?;
            }
        }
        let pages = match own {
            ALL_COLOURS => 0,
            _ => image
                .plan_offset
                .wrapping_add(self.header.size)
                .div_ceil(PAGE),
        };
        Some(PagePool {
            threads,
            virtio,
            registers,
            services,
            image: part(&mut places, pages, own)?,
            end: places.end(),
        })
    }

    /// The places of a service thread: of its state, and of its tables with the root first.
    fn service_parts(&self, places: &mut Placement, service: usize) -> Option<(Region, Region)> {
        let own = self.header.image.colours;
        let all = self.service_threads().get(service)?.pages;
        let state = state_pages(self, service);
        let tables = u64::from(all).saturating_sub(state);
        Some((part(places, state, own)?, part(places, tables, own)?))
    }

    /// Where the state of a service thread lies, and its tables with the root first.
    pub fn service_of(&self, page_pool: &PagePool, service: usize) -> Option<(Region, Region)> {
        let mut places = page_pool.services;
        for before in 0..service {
            let _ = self.service_parts(&mut places, before)?;
        }
        self.service_parts(&mut places, service)
    }

    /// Where the stage-2 tables of a VM lie in the image: their address is the offset from its start.
    pub fn tables_of(&self, vm: usize) -> Option<Region> {
        let row = self.vms.get(vm)?;
        let colours = colours_of(self.regions_of(vm));
        Some(stage2::with_root(row.s2_root, row.s2_pages.into(), colours))
    }
}

// Of the pages of a virtio device one is its state and one has its registers.
const _: () = assert!(VIRTIO_REGISTERS_PAGE == 1 && bulkhead_abi::plan::VIRTIO_PAGES == 2);
