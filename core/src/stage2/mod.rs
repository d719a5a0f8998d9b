//! Stage-2 translation tables: 4 KiB granule, 39-bit IPA, one root page at level 1 (DDI 0487,
//! D8.3 "Translation table descriptor formats").
//!
//! Tables are built once, before the VM runs, from pages that the plan has counted; nothing is
//! mapped on demand and nothing changes while the VM runs.

mod place;
mod size;

pub use place::{Placement, colours_of, root, with_root};
pub use size::pages_needed;

use bulkhead_abi::plan::{ACCESS_EXECUTE, ACCESS_UNCACHED, ACCESS_WRITE, PAGE, Region, RegionKind};

use crate::colours::{self, Piece};

/// A translation table: one page of descriptors.
pub type Table = [u64; 512];

const VALID: u64 = 1;
/// Bit 1 of a descriptor: a table at levels 1 and 2, a page at level 3.
const TABLE_OR_PAGE: u64 = 1 << 1;
const AF: u64 = 1 << 10;
const INNER_SHAREABLE: u64 = 0b11 << 8;
const READ: u64 = 1 << 6;
const WRITE: u64 = 1 << 7;
/// Normal memory, inner and outer write-back.
const NORMAL: u64 = 0b1111 << 2;
/// Normal memory, not cacheable (so outer shareable, as Device memory is): all who map it so or as Device, EL2 for registers of a virtio device,
/// read what was written last (DDI 0487, B2.16 "Mismatched memory attributes").
const NON_CACHEABLE: u64 = 0b0101 << 2;
/// Device-nGnRE.
const DEVICE: u64 = 0b0001 << 2;
const EXECUTE_NEVER: u64 = 0b10 << 53;
/// Normal memory that EL2 reads and writes: AttrIndx 0, bit 6 as EL2 requires, XN (DDI 0487, D8.3.1, stage 1 with one privilege level).
const EL2_DATA: u64 = VALID | AF | INNER_SHAREABLE | 1 << 6 | 1 << 54;
/// The contiguous hint: a TLB may hold sixteen adjacent descriptors as one entry.
const CONTIGUOUS: u64 = 1 << 52;
/// Descriptors that it covers.
const RUN: usize = 16;
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;

/// Bytes that a descriptor of level 1 maps, as log2; of level 2; of level 3.
const GIB: u32 = 30;
const BLOCK: u32 = 21;
const SMALL: u32 = PAGE.trailing_zeros();

/// Reason why tables could not be built. [`Plan::check`](crate::plan::Plan::check) excludes all of
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The tables need more pages than the plan has counted.
    OutOfPages,
    /// An address or a size is not a multiple of a page, or beyond the IPA space.
    Misplaced,
    /// An address of the region is already mapped.
    Overlap,
}

/// A builder of the tables of one VM.
#[derive(Debug)]
pub struct Builder<'a> {
    pages: &'a mut [Table],
    base: u64,
    /// Which of `pages` become tables.
    colours: u64,
    root: usize,
    /// The last page that has become a table.
    newest: usize,
    used: usize,
    /// Most that become tables.
    most: usize,
    /// The last table of pages, and the IPA from which on it maps; an IPA that there is not before there is one.
    last: (u64, usize),
}

/// Attributes of the leaf descriptors of a region.
const fn attributes(region: &Region) -> u64 {
    let registers =
        region.kind == RegionKind::Device as u16 || region.kind == RegionKind::Gicv as u16;
    let kind = if registers {
        DEVICE
    } else if region.kind == RegionKind::VirtioRegisters as u16
        || region.access & ACCESS_UNCACHED != 0
    {
        NON_CACHEABLE
    } else {
        NORMAL | INNER_SHAREABLE
    };
    let write = if region.access & ACCESS_WRITE != 0 {
        WRITE
    } else {
        0
    };
    let execute = if region.access & ACCESS_EXECUTE != 0 {
        0
    } else {
        EXECUTE_NEVER
    };
    VALID | AF | READ | kind | write | execute
}

impl<'a> Builder<'a> {
    /// Starts with an empty root. Of `pages` those become the tables whose bits are set in `colours`, as in [`Region::colours`], the first one the
    /// root, `most` in all; they are at the physical address `base`, aligned to a page, and to 64 if they have not all colours, and contain zeros.
    pub fn new(
        pages: &'a mut [Table],
        base: u64,
        colours: u64,
        most: usize,
    ) -> Result<Self, Error> {
        let root = colours.trailing_zeros() as usize;
        if root >= pages.len() || most == 0 {
            return Err(Error::OutOfPages);
        }
        Ok(Self {
            pages,
            base,
            colours,
            root,
            newest: root,
            used: 1,
            most,
            last: (u64::MAX, 0),
        })
    }

    /// Maps a region with the largest descriptors that its addresses allow.
    pub fn map(&mut self, region: &Region) -> Result<(), Error> {
        self.map_as(region, attributes(region))
    }

    /// Maps a region like [`Self::map`], in the tables of EL2's own stage 1: data, for reading and writing. The region's IPA is the virtual
    /// address.
    pub fn map_for_el2(&mut self, region: &Region) -> Result<(), Error> {
        self.map_as(region, EL2_DATA)
    }

    fn map_as(&mut self, region: &Region, attributes: u64) -> Result<(), Error> {
        let end = region.ipa.checked_add(region.size);
        let aligned = (region.ipa | region.pa | region.size).is_multiple_of(PAGE);
        if end.is_none_or(|end| end > 1 << bulkhead_abi::plan::IPA_BITS) || !aligned {
            return Err(Error::Misplaced);
        }
        let mut ipa = region.ipa;
        let mut pieces = colours::pieces(region);
        let mut next = pieces.next();
        while let Some(piece) = next {
            let newest = self.newest;
            self.map_piece(ipa, piece, attributes)?;
            ipa = ipa.wrapping_add(piece.size);
            next = pieces.next();
            let (range, table) = self.last;
            if range != ipa >> BLOCK || table != self.newest || table == newest {
                continue;
            }
            // What is left of a table that is new, and so empty. Most pieces of memory with colours are short, and there are many.
            let table = self.pages.get_mut(table);
            let left = table.and_then(|table| table.get_mut(index(ipa, SMALL)..));
            let mut left = left.unwrap_or_default();
            while let Some(piece) = next {
                let count = (piece.size >> SMALL) as usize;
                let here = core::mem::take(&mut left).split_at_mut_checked(count);
                let Some((here, behind)) = here.filter(|_| count < RUN) else {
                    break;
                };
                write_pages(here, piece.pa & ADDRESS | attributes | TABLE_OR_PAGE);
                left = behind;
                ipa = ipa.wrapping_add(piece.size);
                next = pieces.next();
            }
        }
        Ok(())
    }

    /// Maps what follows one another in memory.
    fn map_piece(&mut self, mut ipa: u64, piece: Piece, attributes: u64) -> Result<(), Error> {
        let (mut pa, end) = (piece.pa, ipa.wrapping_add(piece.size));
        while ipa < end {
            let left = end.wrapping_sub(ipa);
            // Pieces of memory with colours are short, and there are many.
            let shift = match left >> BLOCK {
                0 => SMALL,
                _ => shift_for(ipa | pa, left),
            };
            let run = (RUN as u64) << shift;
            let behind = ipa & run.wrapping_sub(1);
            // At level 1 there is no gain: no board that this runs on has a run of 16 GiB.
            let (hint, bytes) =
                if left >= run && (behind | pa & run.wrapping_sub(1)) == 0 && shift != GIB {
                    (CONTIGUOUS, run)
                } else {
                    // Up to where the next run could begin.
                    (0, run.wrapping_sub(behind).min(left >> shift << shift))
                };
            let kind = if shift == SMALL { TABLE_OR_PAGE } else { 0 };
            let descriptor = pa & ADDRESS | attributes | hint | kind;
            self.put(ipa, descriptor, shift, (bytes >> shift) as usize)?;
            ipa = ipa.wrapping_add(bytes);
            pa = pa.wrapping_add(bytes);
        }
        Ok(())
    }

    /// Writes leaf descriptors that map 2^`shift` bytes each and follow one another in one table, and the tables above them where they do not exist.
    fn put(
        &mut self,
        ipa: u64,
        mut descriptor: u64,
        shift: u32,
        count: usize,
    ) -> Result<(), Error> {
        let range = ipa >> BLOCK;
        let table = match self.last {
            (last, table) if shift == SMALL && last == range => table,
            _ => {
                let mut table = self.root;
                if shift < GIB {
                    table = self.descend(table, index(ipa, GIB))?;
                }
                if shift < BLOCK {
                    table = self.descend(table, index(ipa, BLOCK))?;
                    self.last = (range, table);
                }
                table
            }
        };
        let first = index(ipa, shift);
        let entries = self.pages.get_mut(table);
        let entries = entries.and_then(|table| table.get_mut(first..first.wrapping_add(count)));
        let step = 1_u64 << shift;
        for entry in entries.ok_or(Error::OutOfPages)? {
            if *entry != 0 {
                return Err(Error::Overlap);
            }
            *entry = descriptor;
            descriptor = descriptor.wrapping_add(step);
        }
        Ok(())
    }

    fn entry(&mut self, table: usize, index: usize) -> Option<&mut u64> {
        self.pages.get_mut(table)?.get_mut(index)
    }

    /// Returns the index of the table below a descriptor, which is created if there is none yet.
    fn descend(&mut self, table: usize, index: usize) -> Result<usize, Error> {
        let (base, may) = (self.base, self.used < self.most);
        let next = self.newest.wrapping_add(1);
        let between = self.colours.rotate_right(next as u32).trailing_zeros();
        let fresh = next.wrapping_add(between as usize);
        let entry = self.entry(table, index).ok_or(Error::OutOfPages)?;
        match *entry & (VALID | TABLE_OR_PAGE) {
            0 if may => {
                let address = base.wrapping_add((fresh as u64).wrapping_mul(PAGE));
                *entry = address | VALID | TABLE_OR_PAGE;
                self.newest = fresh;
                self.used = self.used.wrapping_add(1);
                Ok(fresh)
            }
            0 => Err(Error::OutOfPages),
            3 => {
                let below = (*entry & ADDRESS).wrapping_sub(base) / PAGE;
                Ok(below as usize)
            }
            _ => Err(Error::Overlap),
        }
    }

    /// Number of pages that are used as tables.
    pub const fn used(&self) -> usize {
        self.used
    }
}

/// Writes descriptors of pages that follow one another, without the contiguous hint.
fn write_pages(entries: &mut [u64], mut descriptor: u64) {
    let (fours, rest) = entries.as_chunks_mut();
    for four in fours {
        let [a, b, c, d] = four;
        *a = descriptor;
        *b = descriptor.wrapping_add(PAGE);
        *c = descriptor.wrapping_add(2 * PAGE);
        *d = descriptor.wrapping_add(3 * PAGE);
        descriptor = descriptor.wrapping_add(4 * PAGE);
    }
    for entry in rest {
        *entry = descriptor;
        descriptor = descriptor.wrapping_add(PAGE);
    }
}

/// Index of the descriptor for `ipa` in a table whose descriptors map 2^`shift` bytes each.
const fn index(ipa: u64, shift: u32) -> usize {
    (ipa >> shift) as usize % 512
}

/// The size, as log2, of the largest descriptor that the bits of both addresses and the rest of the region allow.
fn shift_for(bits: u64, left: u64) -> u32 {
    let fits = |shift: u32| bits & ((1 << shift) - 1) == 0 && left >> shift != 0;
    if fits(GIB) {
        GIB
    } else if fits(BLOCK) {
        BLOCK
    } else {
        SMALL
    }
}

/// Walks the tables as the hardware does, for tests and reports. Returns the physical address and
/// the descriptor of an IPA. `pages` begin with the root.
pub fn walk(pages: &[Table], base: u64, ipa: u64) -> Option<(u64, u64)> {
    let mut table = pages.first()?;
    for shift in [GIB, BLOCK, SMALL] {
        let descriptor = *table.get(index(ipa, shift))?;
        if descriptor & VALID == 0 {
            return None;
        }
        if shift == SMALL || descriptor & TABLE_OR_PAGE == 0 {
            let inside = ipa & ((1 << shift) - 1);
            return Some(((descriptor & ADDRESS).wrapping_add(inside), descriptor));
        }
        table = pages.get(((descriptor & ADDRESS).checked_sub(base)? / PAGE) as usize)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_abi::plan::{ACCESS_READ, ALL_COLOURS, NONE};
    use std::vec;

    fn ram(ipa: u64, pa: u64, size: u64) -> Region {
        let access = ACCESS_READ | ACCESS_WRITE | ACCESS_EXECUTE;
        Region {
            vm: 0,
            kind: RegionKind::Ram as u16,
            access,
            shared: NONE,
            ipa,
            pa,
            size,
            colours: ALL_COLOURS,
        }
    }

    const BASE: u64 = 0x4100_0000;

    fn in_all(pages: &mut [Table]) -> Result<Builder<'_>, Error> {
        let most = pages.len();
        Builder::new(pages, BASE, ALL_COLOURS, most)
    }

    #[test]
    fn a_walk_finds_what_was_mapped_and_nothing_beside_it() {
        let regions = [
            ram(0x4000_0000, 0x8000_0000, 1 << 30),
            ram(0x8020_0000, 0x5000_0000, 64 << 20),
            Region {
                kind: RegionKind::Device as u16,
                access: 3,
                ..ram(0x903_0000, 0x903_0000, 0x1000)
            },
            Region {
                kind: RegionKind::Shared as u16,
                access: 1,
                ..ram(0x7_0000_0000, 0x6000_1000, 0x3000)
            },
        ];
        let mut pages = vec![[0; 512]; 10];
        let mut builder = in_all(&mut pages).unwrap();
        for region in &regions {
            builder.map(region).unwrap();
        }
        assert_eq!(builder.used(), pages_needed(&regions) as usize);
        for r in &regions {
            for offset in [0, 0xfff & !7, r.size / 2, r.size - 8] {
                let (pa, descriptor) = walk(&pages, BASE, r.ipa + offset).unwrap();
                assert_eq!(pa, r.pa + offset);
                assert_eq!(descriptor & WRITE != 0, r.access & ACCESS_WRITE != 0);
                assert_eq!(
                    descriptor & EXECUTE_NEVER == 0,
                    r.access & ACCESS_EXECUTE != 0
                );
            }
            assert_eq!(walk(&pages, BASE, r.ipa - 1), None);
            assert_eq!(walk(&pages, BASE, r.ipa + r.size), None);
        }
    }

    #[test]
    fn shared_memory_is_cached_unless_it_may_not_be() {
        let shared = |access, ipa| Region {
            kind: RegionKind::Shared as u16,
            access,
            ..ram(ipa, 0x6000_0000, 0x1000)
        };
        let mut pages = vec![[0; 512]; 3];
        let mut builder = in_all(&mut pages).unwrap();
        builder.map(&shared(3, 0x7000_0000)).unwrap();
        builder
            .map(&shared(3 | ACCESS_UNCACHED, 0x7000_1000))
            .unwrap();
        builder
            .map(&shared(1 | ACCESS_UNCACHED, 0x7000_2000))
            .unwrap();
        // MemAttr [5:2], S2AP [7:6] and SH [9:8], which Normal Non-cacheable memory does not need (DDI 0487, D8.3.2, B2.15.1).
        for (ipa, wanted) in [
            (0x7000_0000, 0b1111_1111),
            (0x7000_1000, 0b0011_0101),
            (0x7000_2000, 0b0001_0101),
        ] {
            let (_, descriptor) = walk(&pages, BASE, ipa).unwrap();
            assert_eq!(descriptor >> 2 & 0xff, wanted, "{ipa:#x}");
        }
    }

    #[test]
    fn runs_carry_the_contiguous_hint() {
        let mut pages = vec![[0; 512]; 3];
        let mut builder = in_all(&mut pages).unwrap();
        builder
            .map(&ram(0x4000_0000, 0x6000_0000, 34 << 20))
            .unwrap();
        assert_ne!(walk(&pages, BASE, 0x4000_0000).unwrap().1 & CONTIGUOUS, 0);
        assert_ne!(walk(&pages, BASE, 0x41ff_ffff).unwrap().1 & CONTIGUOUS, 0);
        assert_eq!(walk(&pages, BASE, 0x4200_0000).unwrap().1 & CONTIGUOUS, 0);
    }

    #[test]
    fn pages_go_from_table_to_table_and_runs_begin_where_they_can() {
        let regions = [
            ram(0x4000_1000, 0x6001_1000, (4 << 20) + 0x1_2000),
            ram(0x4200_0000, 0x7000_1000, 0x2000),
            ram(0x4220_0000, 0x7100_1000, 0x2000),
        ];
        let mut pages = vec![[0; 512]; pages_needed(&regions) as usize];
        let mut builder = in_all(&mut pages).unwrap();
        for region in regions.iter().rev() {
            builder.map(region).unwrap();
        }
        for region in regions {
            for offset in (0..region.size).step_by(0x1000) {
                let (pa, descriptor) = walk(&pages, BASE, region.ipa + offset).unwrap();
                assert_eq!(pa, region.pa + offset);
                let run = (0x6002_0000..0x6042_0000).contains(&pa);
                assert_eq!(descriptor & CONTIGUOUS != 0, run, "{pa:#x}");
            }
        }
    }

    #[test]
    fn colours_are_mapped_page_by_page_with_the_hint_for_sixteen_adjacent_ones() {
        for (colours, hint) in [(0xffff_u64, true), (0xff, false), (0xffff << 8, false)] {
            let region = Region {
                colours,
                ..ram(0x4000_0000, 0x6000_0000, 3 << 20)
            };
            let mut pages = vec![[0; 512]; pages_needed(&[region]) as usize];
            let mut builder = in_all(&mut pages).unwrap();
            builder.map(&region).unwrap();
            assert_eq!(builder.used(), 4, "two tables of pages");
            let own = (region.pa..).step_by(0x1000);
            let own = own.filter(|pa| colours >> (pa / PAGE % 64) & 1 != 0);
            for (ipa, pa) in (region.ipa..region.ipa + region.size)
                .step_by(0x1000)
                .zip(own)
            {
                let (found, descriptor) = walk(&pages, BASE, ipa).unwrap();
                assert_eq!((found, descriptor & CONTIGUOUS != 0), (pa, hint));
            }
        }
    }

    #[test]
    fn tables_lie_in_their_colours_and_touch_no_other_page() {
        let region = ram(0x4000_1000, 0x6000_0000, 200 << 20);
        let needed = pages_needed(&[region]);
        for colours in [ALL_COLOURS, 0xf0f0, 1 << 63, 0x5555_5555_5555_5555] {
            // Everything but these colours is somebody else's.
            let mut pages = vec![[7; 512]; 64 * needed as usize];
            let is_own = |page: usize| colours >> (page % 64) & 1 != 0;
            let own = pages.iter_mut().enumerate();
            own.filter(|(page, _)| is_own(*page))
                .for_each(|(_, table)| *table = [0; 512]);
            let place = with_root(BASE, needed, colours);
            let mut builder = Builder::new(&mut pages, place.pa, colours, needed as usize).unwrap();
            builder.map(&region).unwrap();
            assert_eq!(builder.used() as u64, needed);
            let more = builder.map(&ram(0x7_0000_0000, 0, 0x1000));
            assert_eq!(more, Err(Error::OutOfPages));
            let first = ((root(&place) - place.pa) / PAGE) as usize;
            for ipa in (region.ipa..region.ipa + region.size).step_by(0x1f_f000) {
                let found = walk(&pages[first..], root(&place), ipa);
                assert_eq!(found.unwrap().0, ipa - region.ipa + region.pa);
            }
            let others = pages.iter().enumerate().filter(|(page, _)| !is_own(*page));
            assert!(
                others
                    .map(|(_, table)| table)
                    .all(|table| *table == [7; 512])
            );
            let used = pages
                .iter()
                .enumerate()
                .filter(|(page, table)| is_own(*page) && **table != [0; 512]);
            let last = colours::piece(&place, place.size - PAGE).unwrap().pa;
            assert!(
                used.map(|(page, _)| page as u64 * PAGE + place.pa)
                    .all(|pa| pa <= last)
            );
        }
        let mut pages = vec![[0; 512]; 5];
        let result = Builder::new(&mut pages, BASE, 1 << 5, 5);
        assert_eq!(result.map(|_| ()), Err(Error::OutOfPages));
    }

    #[test]
    fn mistakes_are_refused() {
        let mut pages = vec![[0; 512]; 2];
        let mut builder = in_all(&mut pages).unwrap();
        builder
            .map(&ram(0x4000_0000, 0x6000_0000, 2 << 20))
            .unwrap();
        assert_eq!(
            builder.map(&ram(0x4000_0000, 0x7000_0000, 2 << 20)),
            Err(Error::Overlap)
        );
        assert_eq!(
            builder.map(&ram(0x4010_0000, 0x7000_0000, 0x1000)),
            Err(Error::Overlap)
        );
        assert_eq!(
            builder.map(&ram(0x4020_0000, 0x7000_0000, 0x1000)),
            Err(Error::OutOfPages)
        );
        let mut pages = vec![[0; 512]; 3];
        let mut builder = in_all(&mut pages).unwrap();
        builder.map(&ram(0x4020_5000, 0x7000_0000, 0x1000)).unwrap();
        assert_eq!(
            builder.map(&ram(0x4020_0000, 0x7020_0000, 2 << 20)),
            Err(Error::Overlap)
        );
        assert_eq!(
            builder.map(&ram(0x4020_0800, 0x7000_0000, 0x1000)),
            Err(Error::Misplaced)
        );
        // A table that has a page is not new to a region with colours, wherever in it that lies.
        for (first, other) in [(0x4020_5000, 0x4020_0000), (0x4020_0000, 0x401f_0000)] {
            let mut pages = vec![[0; 512]; 5];
            let mut builder = in_all(&mut pages).unwrap();
            builder.map(&ram(first, 0x7000_0000, 0x1000)).unwrap();
            let coloured = Region {
                colours: 0x0101_0101_0101_0101,
                ..ram(other, 0x6000_0000, 0x2_0000)
            };
            assert_eq!(builder.map(&coloured), Err(Error::Overlap), "{other:#x}");
        }
        assert_eq!(
            builder.map(&ram(1 << 39, 0x7000_0000, 0x1000)),
            Err(Error::Misplaced)
        );
    }
}
