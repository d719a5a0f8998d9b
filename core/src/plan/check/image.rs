//! Rules about the image: its location, its contents, and the page pool after it.

use bulkhead_abi::plan::{
    EL2_BLOCK, LOAD_LIMIT, MAX_PAGE_POOL, PAGE, PCPU_PAGES, Profile, TableId, VCPU_PAGES, VM_PAGES,
};

use super::regions::{is_memory, region_pa};
use crate::plan::span::{Span, align_up, aligned};
use crate::plan::view::{IO, Plan};
use crate::plan::violation::{At, Check, Invariant};
use crate::stage2::{Placement, colours_of, pages_needed, root};

/// Alignment of an arm64 image (Linux, Documentation/arch/arm64/booting.rst).
const IMAGE_ALIGN: u64 = 2 * 1024 * 1024;

impl Plan<'_> {
    /// Checks the location of the image, and of the plan in it.
    pub(super) fn check_image<const PROFILE: u32>(&self) -> Check {
        let at = At::HEADER;
        let image = &self.header.image;
        let known = image.profile < Profile::ALL.len() as u32;
        let fits = known && self.least_profile::<PROFILE>() as u32 <= image.profile;
        at.ensure(fits, Invariant::Profile)?;
        let base = aligned(image.base, IMAGE_ALIGN) && image.base < LOAD_LIMIT;
        at.ensure(base, Invariant::ImageBase)?;
        let end = Span::new(image.plan_offset, self.header.size).map(|plan| plan.end);
        let placed = aligned(image.plan_offset, PAGE)
            && image.plan_offset > 0
            && end.is_some_and(|end| end <= EL2_BLOCK);
        at.ensure(placed, Invariant::PlanOffset)?;
        let page_pool = u64::from(image.page_pool_pages).wrapping_mul(PAGE);
        let sum = image.page_pool_offset.checked_add(page_pool);
        at.ensure(sum == Some(image.size), Invariant::ImageSize)?;
        let span = Span::new(image.base, image.size).filter(|span| span.end <= LOAD_LIMIT);
        let span = span.ok_or(at.breaks(Invariant::ImageBase))?;
        at.ensure(self.in_memory(span), Invariant::ImageMemory)?;
        match self.region_in(span) {
            None => Ok(()),
            Some(row) => Err(At::row(TableId::Regions, row).breaks(Invariant::ImageOverlap)),
        }
    }

    /// The first region of RAM or shared memory that overlaps `span`.
    #[inline(never)]
    pub(in crate::plan) fn region_in(&self, span: Span) -> Option<usize> {
        self.regions.iter().position(|region| {
            is_memory(region) && region_pa(region).is_some_and(|pa| pa.overlaps(span))
        })
    }

    /// Checks the number of pages of stage-2 tables and of the whole page pool.
    pub(super) fn check_page_pool<const PROFILE: u32>(&self) -> Check {
        let pcpus = (self.pcpus.len() as u64).wrapping_mul(u64::from(PCPU_PAGES));
        let vms = (self.vms.len() as u64).wrapping_mul(u64::from(VM_PAGES));
        let vcpus = (self.vcpus.len() as u64).wrapping_mul(u64::from(VCPU_PAGES));
        let mut before = pcpus.wrapping_add(vcpus).wrapping_add(vms);
        if PROFILE >= IO {
            let threads = self.service_threads().len() as u64;
            before = before.wrapping_add(threads.wrapping_mul(u64::from(VCPU_PAGES)));
        }
        let start = self.header.image.page_pool_offset;
        let mut places = Placement::from(start.wrapping_add(before.wrapping_mul(PAGE)));
        for (row, vm) in self.vms.iter().enumerate() {
            let at = At::row(TableId::Vms, row);
            let regions = self.regions_of(row);
            let needed = pages_needed(regions);
            at.ensure(u64::from(vm.s2_pages) == needed, Invariant::VmStage2Pages)?;
            let place = places.next(needed, colours_of(regions));
            let placed = place.is_some_and(|place| root(&place) == vm.s2_root);
            at.ensure(placed, Invariant::VmStage2Place)?;
        }
        let mut pages = places.end().wrapping_sub(start) / PAGE;
        if PROFILE >= IO {
            pages = pages.wrapping_add(self.virtio_pages());
        }
        At::HEADER.ensure(
            u64::from(self.header.image.page_pool_pages) == pages && pages <= MAX_PAGE_POOL,
            Invariant::PagePoolPages,
        )
    }

    /// Offset of the first page of the image after the plan; valid once `check_image` has passed.
    pub(super) fn payloads_start(&self) -> Option<u64> {
        let plan = Span::new(self.header.image.plan_offset, self.header.size)?;
        align_up(plan.end, PAGE)
    }
}
