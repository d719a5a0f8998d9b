//! Rules about the image: its location, its contents, and the page pool after it.

use bulkhead_abi::plan::{EL2_BLOCK, LOAD_LIMIT, MAX_PAGE_POOL, PAGE, Profile, TableId};

use super::regions::{is_memory, region_pa};
use crate::plan::page_pool::PagePool;
use crate::plan::span::{Span, align_up, aligned};
use crate::plan::view::Plan;
use crate::plan::violation::{At, Check, Invariant, Violation};
use crate::stage2::{pages_needed, root};

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
        // EL2 runs on all pCPUs.
        let part = image.colours != 0 && self.is_part_of(u32::MAX, image.colours);
        at.ensure(part, Invariant::El2Colours)?;
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

    /// Checks the number of pages of stage-2 tables and of the whole page pool, and returns where its parts lie.
    pub(super) fn check_page_pool<const PROFILE: u32>(&self) -> Result<PagePool, Violation> {
        for (row, vm) in self.vms.iter().enumerate() {
            let needed = pages_needed(self.regions_of(row));
            let counted = u64::from(vm.s2_pages) == needed;
            At::row(TableId::Vms, row).ensure(counted, Invariant::VmStage2Pages)?;
        }
        let mut elsewhere = None;
        let page_pool = self.page_pool::<PROFILE>(|row, place| {
            let placed = self
                .vms
                .get(row)
                .is_some_and(|vm| root(place) == vm.s2_root);
            if !placed && elsewhere.is_none() {
                elsewhere = Some(row);
            }
        });
        if let Some(row) = elsewhere {
            return Err(At::row(TableId::Vms, row).breaks(Invariant::VmStage2Place));
        }
        let image = &self.header.image;
        let counted = |page_pool: &PagePool| {
            let pages = page_pool.end.wrapping_sub(image.page_pool_offset) / PAGE;
            u64::from(image.page_pool_pages) == pages && pages <= MAX_PAGE_POOL
        };
        page_pool
            .filter(counted)
            .ok_or(At::HEADER.breaks(Invariant::PagePoolPages))
    }

    /// Offset of the first page of the image after the plan; valid once `check_image` has passed.
    pub(super) fn payloads_start(&self) -> Option<u64> {
        let plan = Span::new(self.header.image.plan_offset, self.header.size)?;
        align_up(plan.end, PAGE)
    }
}
