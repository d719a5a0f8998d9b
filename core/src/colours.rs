//! Which pages of memory a region has. Pages whose numbers are the same modulo the size of a cache's way compete for the same sets of it: they
//! have one colour. A region that keeps to some colours has, of each 64 pages, those whose bits are set in [`Region::colours`]; its pages follow
//! one another in that order.

use bulkhead_abi::plan::{ALL_COLOURS, COLOUR_GROUP, MAX_COLOURS, PAGE, Region};

use crate::plan::{Span, aligned};

/// Colours of a cache with this CCSIDR_EL1, which is wide if the CPU has FEAT_CCIDX (DDI 0487, D24.2.27): the pages of a way, as far as a region
/// has bits for them.
pub const fn of_cache(ccsidr: u64, wide: bool) -> u32 {
    let line = 16u64.wrapping_shl((ccsidr & 7) as u32);
    let sets = if wide {
        ccsidr >> 32 & 0xff_ffff
    } else {
        ccsidr >> 13 & 0x7fff
    };
    let pages = sets.wrapping_add(1).wrapping_mul(line) / PAGE;
    if pages < MAX_COLOURS as u64 {
        pages as u32
    } else {
        MAX_COLOURS
    }
}

/// Bytes of a region that follow one another in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Physical address.
    pub pa: u64,
    /// Bytes, not 0.
    pub size: u64,
}

/// Where the byte of a region that is `offset` bytes behind its start lies, and how much of the region follows it in memory. `None` behind the
/// end of the region, and for one without any colour.
pub fn piece(region: &Region, offset: u64) -> Option<Piece> {
    if region.colours == ALL_COLOURS {
        let (pa, size) = (
            region.pa.wrapping_add(offset),
            region.size.checked_sub(offset)?,
        );
        return (size != 0).then_some(Piece { pa, size });
    }
    let mut pieces = pieces(region);
    let group = u64::from(region.colours.count_ones()).wrapping_mul(PAGE);
    let groups = offset.checked_div(group)?;
    let bytes = groups.wrapping_mul(group);
    let mut before = offset.wrapping_sub(bytes);
    pieces.left = pieces.left.checked_sub(bytes)?;
    pieces.at = pieces.at.wrapping_add(groups.wrapping_mul(COLOUR_GROUP));
    // A group has 32 pieces at most.
    loop {
        let Piece { pa, size } = pieces.next()?;
        if before < size {
            return Some(Piece {
                pa: pa.wrapping_add(before),
                size: size.wrapping_sub(before),
            });
        }
        before = before.wrapping_sub(size);
    }
}

/// The pieces of a region in the order of its addresses.
#[inline(never)]
pub const fn pieces(region: &Region) -> Pieces {
    let colours = region.colours;
    let mut pieces = Pieces {
        left: region.size,
        at: region.pa,
        run: 0,
        stride: COLOUR_GROUP,
        colours,
        rest: colours,
    };
    if colours == ALL_COLOURS {
        pieces.run = region.size;
        return pieces;
    }
    // Most colours are adjacent ones, of a cache that has 64 or a fraction: their runs have one length and one distance.
    let first = colours.trailing_zeros();
    let run = colours.wrapping_shr(first).trailing_ones();
    let gap = colours.rotate_right(first.wrapping_add(run));
    let stride = run.wrapping_add(gap.trailing_zeros());
    let whole = colours & 1 == 0 || colours >> 63 == 0;
    if whole && stride.is_power_of_two() && colours.rotate_left(stride) == colours {
        pieces.at = pieces.at.wrapping_add((first as u64).wrapping_mul(PAGE));
        pieces.run = (run as u64).wrapping_mul(PAGE);
        pieces.stride = (stride as u64).wrapping_mul(PAGE);
    }
    pieces
}

/// See [`pieces`].
#[derive(Clone, Debug)]
pub struct Pieces {
    /// Bytes that are to come.
    left: u64,
    /// Address of the next piece, or of the group of 64 pages if their runs differ.
    at: u64,
    /// Bytes of each piece but for the last, and from one to the next; no bytes if they differ.
    run: u64,
    stride: u64,
    colours: u64,
    /// Colours of the pages of the group that were not passed yet, if their runs differ.
    rest: u64,
}

impl Pieces {
    /// The next piece where runs differ.
    #[inline(never)]
    fn next_run(&mut self) -> Option<Piece> {
        if self.rest == 0 {
            self.at = self.at.wrapping_add(COLOUR_GROUP);
            self.rest = self.colours;
            if self.rest == 0 {
                return None;
            }
        }
        // The carry of its lowest bit goes to the first bit behind the adjacent ones, and clears these.
        let first = self.rest.trailing_zeros();
        let carried = self.rest.wrapping_add(1 << first);
        let run = carried.trailing_zeros().wrapping_sub(first);
        self.rest &= carried;
        let pa = self.at.wrapping_add(u64::from(first).wrapping_mul(PAGE));
        let size = u64::from(run).wrapping_mul(PAGE).min(self.left);
        self.left = self.left.wrapping_sub(size);
        Some(Piece { pa, size })
    }
}

impl Iterator for Pieces {
    type Item = Piece;

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        if self.left == 0 {
            return None;
        }
        if self.run == 0 {
            return self.next_run();
        }
        let (pa, size) = (self.at, self.run.min(self.left));
        self.at = pa.wrapping_add(self.stride);
        self.left = self.left.wrapping_sub(size);
        Some(Piece { pa, size })
    }
}

/// The addresses among which a region lies: whole groups of 64 pages where it keeps to some colours, so that those of the last one that it does
/// not need are nobody's. `None` if it is empty, has no colour, or goes beyond the last address.
pub fn span(region: &Region) -> Option<Span> {
    let size = match region.colours {
        ALL_COLOURS => region.size,
        colours => {
            let each = u64::from(colours.count_ones()).wrapping_mul(PAGE);
            let rest = u64::from(region.size.checked_rem(each)? != 0);
            let groups = region.size.checked_div(each)?.wrapping_add(rest);
            groups.checked_mul(COLOUR_GROUP)?
        }
    };
    Span::new(region.pa, size)
}

/// Whether this physical address is the region's, or nobody's.
pub fn has(region: &Region, pa: u64) -> bool {
    let bit = 1_u64.wrapping_shl((pa / PAGE) as u32);
    region.colours & bit != 0 && span(region).is_some_and(|span| span.has(pa))
}

/// Whether the colours of a region fit its place: it has one, and if it has not all, its start is where bit 0 stands.
pub const fn is_placed(region: &Region) -> bool {
    region.colours == ALL_COLOURS || region.colours != 0 && aligned(region.pa, COLOUR_GROUP)
}

#[cfg(test)]
mod tests {
    use bulkhead_abi::plan::{NONE, RegionKind};
    use proptest::prelude::*;
    use std::vec::Vec;

    use super::*;

    fn region(pa: u64, pages: u64, colours: u64) -> Region {
        Region {
            vm: 0,
            kind: RegionKind::Ram as u16,
            access: 7,
            shared: NONE,
            ipa: 0x4000_0000,
            pa,
            size: pages * PAGE,
            colours,
        }
    }

    /// The pages of a region as the definition of its field has it, one by one.
    fn pages(region: &Region) -> Vec<u64> {
        let numbers = region.pa / PAGE..;
        let own = numbers.filter(|page| region.colours >> (page % 64) & 1 != 0);
        own.map(|page| page * PAGE)
            .take((region.size / PAGE) as usize)
            .collect()
    }

    const BASE: u64 = 0x4004_0000;

    #[test]
    fn a_cache_has_as_many_colours_as_a_way_has_pages() {
        // 1 MiB and 2 MiB of 16 ways of a Cortex-A53 and A57, with lines of 64 bytes; an L1 of 32 KiB and 4 ways; the widest.
        let known = [
            (0x707f_e07a, 16),
            (0x70ff_e07a, 32),
            (0x700f_e01a, 2),
            (0x0fff_e07a, 64),
        ];
        for (ccsidr, colours) in known {
            assert_eq!(of_cache(ccsidr, false), colours, "{ccsidr:#x}");
        }
        // The same 1 MiB where CCSIDR_EL1 is wide.
        assert_eq!(of_cache(0x3ff << 32 | 15 << 3 | 2, true), 16);
        assert_eq!(of_cache(u64::MAX, true), MAX_COLOURS);
    }

    /// Colours of runs that differ, or of equal ones at equal distances, which may be cut where a group of 64 begins.
    fn some_colours() -> impl Strategy<Value = u64> {
        let equal = (0..7_u32, 0..64_u32, 0..64_u32).prop_map(|(period, run, first)| {
            let period = 1_u32 << period;
            let one = u64::MAX >> (63 - run % period);
            let all = (0..64 / period).fold(0, |all, n| all | one << (n * period));
            all.rotate_left(first)
        });
        prop_oneof![any::<u64>().prop_map(|colours| colours.max(1)), equal]
    }

    proptest! {
        #[test]
        fn each_page_is_where_the_bits_say(pages_ in 1..400_u64, colours in some_colours(), inside in 0..PAGE) {
            let region = region(BASE, pages_, colours);
            let wanted = pages(&region);
            for (page, pa) in wanted.iter().enumerate() {
                let found = piece(&region, page as u64 * PAGE + inside).unwrap();
                prop_assert_eq!(found.pa, pa + inside);
                let follow = wanted[page..].windows(2).take_while(|two| two[0] + PAGE == two[1] && two[1] % COLOUR_GROUP != 0);
                let follow = follow.count() as u64;
                prop_assert!(colours == ALL_COLOURS || found.size == (follow + 1) * PAGE - inside);
            }
            prop_assert_eq!(piece(&region, region.size), None);
            let each = pieces(&region).flat_map(|piece| (piece.pa..piece.pa + piece.size).step_by(PAGE as usize));
            prop_assert_eq!(each.collect::<Vec<_>>(), wanted.clone());
            let span = span(&region).unwrap();
            let last = *wanted.last().unwrap();
            let end = if colours == ALL_COLOURS { last + PAGE } else { (last + PAGE).next_multiple_of(COLOUR_GROUP) };
            prop_assert_eq!((span.start, span.end), (BASE, end));
            for page in BASE / PAGE - 64..span.end / PAGE + 64 {
                let pa = page * PAGE + inside;
                let behind = (last + PAGE..end).contains(&pa) && colours >> (page % 64) & 1 != 0;
                prop_assert_eq!(has(&region, pa), wanted.contains(&(page * PAGE)) || behind);
            }
        }

        #[test]
        fn regions_that_share_a_page_have_spans_that_overlap_and_a_common_colour(
            one in (0..4_u64, 1..300_u64, any::<u64>()),
            other in (0..4_u64, 1..300_u64, any::<u64>()),
        ) {
            let region = |(group, pages, colours): (u64, u64, u64)| {
                // Few colours, so that there are some that do not meet.
                region(BASE + group * COLOUR_GROUP, pages, colours & colours.rotate_left(7) | 1 << (group * 13))
            };
            let (one, other) = (region(one), region(other));
            let theirs = pages(&other);
            let share = pages(&one).iter().any(|page| theirs.contains(page));
            let spans = [one, other].map(|region| span(&region).unwrap());
            prop_assert!(spans[0].overlaps(spans[1]) && one.colours & other.colours != 0 || !share);
        }
    }

    #[test]
    fn what_has_no_place_has_no_span() {
        assert_eq!(span(&region(BASE, 4, 0)), None);
        assert_eq!(span(&region(BASE, 0, 5)), None);
        assert_eq!(span(&region(!0 << 18, 200, 5)), None);
        let long = Region {
            size: !0 << 12,
            ..region(BASE, 1, 5)
        };
        assert!(span(&long).is_none());
        assert_eq!(
            span(&Region {
                size: 1 << 63,
                ..region(1 << 63, 1, 1)
            }),
            None
        );
        assert!(is_placed(&region(BASE, 4, 5)) && !is_placed(&region(BASE + PAGE, 4, 5)));
        assert!(is_placed(&region(BASE + PAGE, 4, ALL_COLOURS)) && !is_placed(&region(BASE, 4, 0)));
    }
}
