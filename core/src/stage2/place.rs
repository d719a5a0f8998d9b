//! Places of the VMs' stage-2 tables in the image, in bytes from its start, which is a multiple of 64 pages: one VM's tables follow the
//! other's, and those of VMs that have no colour in common lie among each other.

use bulkhead_abi::plan::{ALL_COLOURS, COLOUR_GROUP, PAGE, Region, RegionKind};
use zerocopy::FromZeros;

use crate::colours;

/// Gives the tables of each VM a place, in the order of the VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Start of the groups of 64 pages in which tables of the last VMs lie.
    start: u64,
    /// End of all tables.
    end: u64,
    /// Colours of those that lie from `start` on.
    taken: u64,
}

impl Placement {
    /// Places from a page of the image on.
    pub const fn from(start: u64) -> Self {
        Self {
            start,
            end: start,
            taken: ALL_COLOURS,
        }
    }

    /// The place of the next VM's tables, which have the colours of its RAM. `None` if it has no colour, or beyond the last address.
    pub fn next(&mut self, pages: u64, colours: u64) -> Option<Region> {
        if self.taken & colours != 0 {
            self.start = match colours {
                ALL_COLOURS => self.end,
                _ => self.end.checked_next_multiple_of(COLOUR_GROUP)?,
            };
            self.taken = 0;
        }
        self.taken |= colours;
        let place = tables(self.start, pages, colours);
        self.end = self.end.max(colours::span(&place)?.end);
        Some(place)
    }

    /// The end of all tables that have a place.
    pub const fn end(&self) -> u64 {
        self.end
    }
}

/// The colours of a VM with these regions: those of its RAM.
pub fn colours_of(regions: &[Region]) -> u64 {
    let mut regions = regions.iter();
    let ram = regions.find(|region| region.kind == RegionKind::Ram as u16);
    ram.map_or(ALL_COLOURS, |ram| ram.colours)
}

/// So many pages of these colours from `start` on.
fn tables(start: u64, pages: u64, colours: u64) -> Region {
    Region {
        pa: start,
        size: pages.wrapping_mul(PAGE),
        colours,
        ..Region::new_zeroed()
    }
}

/// The address of the first page of tables that have a place: the root.
pub const fn root(place: &Region) -> u64 {
    let before = match place.colours {
        ALL_COLOURS => 0,
        colours => colours.trailing_zeros() as u64,
    };
    place.pa.wrapping_add(before.wrapping_mul(PAGE))
}

/// The place of tables whose root is here: [`root`], the other way.
pub fn with_root(root: u64, pages: u64, colours: u64) -> Region {
    let start = match colours {
        ALL_COLOURS => root,
        _ => root & !COLOUR_GROUP.wrapping_sub(1),
    };
    tables(start, pages, colours)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// Numbers of the pages, by the definition of a region's colours.
    fn pages(place: &Region) -> Vec<u64> {
        let numbers = place.pa / PAGE..;
        let own = numbers.filter(|page| place.colours >> (page % 64) & 1 != 0);
        own.take((place.size / PAGE) as usize).collect()
    }

    proptest! {
        #[test]
        fn no_page_is_given_twice_and_each_has_its_colour(
            start in 0..200_u64,
            vms in proptest::collection::vec((1..300_u64, prop_oneof![Just(ALL_COLOURS), 1..u64::MAX, (0..4_u32).prop_map(|n| 0xf << (n * 4))]), 1..8),
        ) {
            let mut places = Placement::from(start * PAGE);
            let mut given = BTreeSet::new();
            for (count, colours) in vms {
                let place = places.next(count, colours).unwrap();
                let own = pages(&place);
                prop_assert_eq!(own.len() as u64, count);
                prop_assert_eq!(root(&place), own[0] * PAGE);
                prop_assert_eq!(with_root(root(&place), count, colours), place);
                for page in own {
                    prop_assert!(given.insert(page), "page {} twice", page);
                    prop_assert!(page >= start && page * PAGE < places.end());
                }
            }
        }
    }

    #[test]
    fn those_without_a_common_colour_share_groups_and_nothing_lies_between_those_without_colours() {
        let mut places = Placement::from(5 * PAGE);
        let mut next = |pages, colours| places.next(pages, colours).unwrap().pa / PAGE;
        assert_eq!(next(3, ALL_COLOURS), 5);
        assert_eq!(next(2, ALL_COLOURS), 8);
        let (even, odd) = (0x5555_5555_5555_5555, 0xaaaa_aaaa_aaaa_aaaa);
        assert_eq!(next(33, even), 64);
        assert_eq!(next(1, odd), 64);
        // The first one's take two groups.
        assert_eq!(next(1, odd), 192);
        assert_eq!(next(7, ALL_COLOURS), 256);
        assert_eq!(places.end(), 263 * PAGE);
        assert_eq!(places.next(1, 0), None);
    }
}
