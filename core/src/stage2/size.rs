//! Number of pages that the stage-2 tables of a VM take.

use bulkhead_abi::plan::{ALL_COLOURS, Region};

/// Size that one entry of a level-1 table maps: 1 GiB, as log2.
const LEVEL1: u32 = 30;
/// Size that one entry of a level-2 table maps: 2 MiB, as log2.
const LEVEL2: u32 = 21;

/// Returns the number of pages of the stage-2 tables for `regions`, which are those of one VM,
/// ascending by IPA and disjoint, within the 39-bit IPA space: one root page at level 1; a level-2
/// page for each GiB touched unless a block maps all of it; a level-3 page for each 2 MiB touched
/// unless a block maps all of it. A block needs IPA and PA aligned to its size, and all colours.
pub fn pages_needed(regions: &[Region]) -> u64 {
    let mut pages = 1_u64;
    let mut level2 = None;
    let mut level3 = None;
    for region in regions {
        pages = pages
            .wrapping_add(tables::<LEVEL1>(region, &mut level2))
            .wrapping_add(tables::<LEVEL2>(region, &mut level3));
    }
    pages
}

/// Number of tables that `region` adds for aligned ranges of 2^`SHIFT` bytes that no block maps.
/// `last` is the last range that has a table already; it is updated.
fn tables<const SHIFT: u32>(region: &Region, last: &mut Option<u64>) -> u64 {
    let mask = (1_u64 << SHIFT) - 1;
    let end = region.ipa.wrapping_add(region.size);
    let first_range = region.ipa >> SHIFT;
    let last_range = end.wrapping_sub(1) >> SHIFT;
    // Ranges that are wholly inside the region, if blocks can map them.
    let inner = (end >> SHIFT).saturating_sub(region.ipa.wrapping_add(mask) >> SHIFT);
    let blocks = if (region.ipa ^ region.pa) & mask == 0 && region.colours == ALL_COLOURS {
        inner
    } else {
        0
    };
    let mut count = last_range
        .wrapping_sub(first_range)
        .wrapping_add(1)
        .wrapping_sub(blocks);
    // A range that the previous region touches, too, is wholly inside neither of the two.
    if *last == Some(first_range) {
        count = count.wrapping_sub(1);
    }
    *last = Some(last_range);
    count
}
