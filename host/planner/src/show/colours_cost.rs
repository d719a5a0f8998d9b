//! What colours cost a VM.

use std::fmt::Write;

use bulkhead_abi::plan::{ALL_COLOURS, PAGE, Region};
use bulkhead_core::{colours, stage2};
use serde::Serialize;

use bulkhead_model::describe::Size;

use super::count;
use crate::PlannedVm;

/// Most instructions that the start of a VM takes longer for each page that has a colour: the ceiling of the figure `boot_colours_page`.
pub const START: u64 = 12;

/// What colours cost a VM beside the part of the cache that it does not get.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Cost {
    /// Bytes of memory among which its own lie.
    span: u64,
    /// Pages of stage-2 tables beyond those that would do without colours, where memory is large enough for blocks.
    tables: u64,
    /// Most instructions by which a start takes longer.
    start: u64,
    /// Whether the contiguous hint of sixteen adjacent pages spares entries of the TLB.
    hint: bool,
}

/// The cost of a VM's colours; none if it has all.
pub(super) fn cost(vm: &PlannedVm) -> Option<Cost> {
    let regions: Vec<Region> = vm.regions.iter().map(|mapped| mapped.region).collect();
    let coloured = || {
        regions
            .iter()
            .filter(|region| region.colours != ALL_COLOURS)
    };
    let sixteen = |region: &Region| (0..4).any(|n| region.colours >> (n * 16) & 0xffff == 0xffff);
    let spans = coloured().filter_map(colours::span);
    let pages: u64 = coloured().map(|region| region.size / PAGE).sum();
    // The same, in one piece that blocks can map.
    let plain = regions.iter().map(|region| match region.colours {
        ALL_COLOURS => *region,
        _ => Region {
            colours: ALL_COLOURS,
            pa: region.ipa,
            ..*region
        },
    });
    let plain: Vec<Region> = plain.collect();
    coloured().next().map(|_| Cost {
        span: spans.map(|span| span.end - span.start).sum(),
        tables: u64::from(vm.s2_pages).saturating_sub(stage2::pages_needed(&plain)),
        start: pages * START,
        hint: coloured().any(sixteen),
    })
}

/// Says it.
pub(super) fn write(vm: &PlannedVm, out: &mut String) -> std::fmt::Result {
    let Some(cost) = cost(vm) else {
        return Ok(());
    };
    let tlb = if cost.hint {
        "each sixteen pages that are adjacent"
    } else {
        "each page"
    };
    writeln!(
        out,
        "  colours    cost {} of tables more, an entry of the TLB for {tlb}, {} instructions more at most at each start; its pages lie in {}",
        count(cost.tables as usize, "page"),
        cost.start,
        Size(cost.span)
    )
}
