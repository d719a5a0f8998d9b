//! Table walks (Arm DDI 0487, D8.2 "Translation process"): which descriptors are read, and where an address leads. Granule 4 KiB.

use crate::memory::Memory;
use crate::sets::Sets;
use bulkhead_plugin::caches::Geometry;

const ADDRESS: u64 = 0x0000_ffff_ffff_f000;

/// Translation of one stage: where its tables begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tables {
    root: u64,
    /// Level at which a walk starts.
    level: u32,
}

/// The registers by which an address is translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Regime {
    /// EL2's own: `ttbr0`, `tcr` and `sctlr` are EL2's, and there is no stage 2.
    pub is_el2: bool,
    /// `SCTLR_ELx`
    pub sctlr: u64,
    /// `TCR_ELx`
    pub tcr: u64,
    /// `TTBR0_ELx`
    pub ttbr0: u64,
    /// `TTBR1_EL1`
    pub ttbr1: u64,
    /// `HCR_EL2`
    pub hcr: u64,
    /// `VTCR_EL2`
    pub vtcr: u64,
    /// `VTTBR_EL2`
    pub vttbr: u64,
}

/// A granule that the model does not know.
struct Unknown;

impl Regime {
    /// Context of an entry in a TLB: VMID and ASID; EL2 has a VMID that no VM has.
    pub const fn tag(&self) -> Tag {
        if self.is_el2 {
            return Tag { vmid: 0, asid: 0 };
        }
        let vmid = if self.hcr & 1 != 0 {
            self.vttbr >> 48
        } else {
            0xffff
        };
        // TCR_EL1.A1 says which of the two has the ASID.
        let asid = if self.tcr >> 22 & 1 != 0 {
            self.ttbr1
        } else {
            self.ttbr0
        };
        Tag {
            vmid: vmid as u16,
            asid: (asid >> 48) as u16,
        }
    }

    /// The address by which stage 1 looks an address up.
    const fn is_high(address: u64) -> bool {
        address >> 55 & 1 != 0
    }

    /// Stage 1 for this address; `None` if it is off.
    fn stage1(&self, address: u64) -> Result<Option<Tables>, Unknown> {
        if self.sctlr & 1 == 0 {
            return Ok(None);
        }
        let high = Self::is_high(address) && !self.is_el2;
        let (root, size, granule, right) = if high {
            (self.ttbr1, self.tcr >> 16, self.tcr >> 30 & 3, 2)
        } else {
            (self.ttbr0, self.tcr, self.tcr >> 14 & 3, 0)
        };
        if granule != right {
            return Err(Unknown);
        }
        // So many bits below are translated, nine a level.
        let bits = 64 - (size & 0x3f);
        let levels = bits.saturating_sub(12).div_ceil(9).clamp(1, 4);
        Ok(Some(Tables {
            root: root & ADDRESS,
            level: 4 - u32::try_from(levels).unwrap_or(1),
        }))
    }

    /// Stage 2; `None` if it is off.
    fn stage2(&self) -> Result<Option<Tables>, Unknown> {
        if self.is_el2 || self.hcr & 1 == 0 {
            return Ok(None);
        }
        if self.vtcr >> 14 & 3 != 0 {
            return Err(Unknown);
        }
        // SL0: 0 starts at level 2, 1 at level 1, 2 at level 0.
        let level = match self.vtcr >> 6 & 3 {
            0 => 2,
            1 => 1,
            2 => 0,
            _ => return Err(Unknown),
        };
        Ok(Some(Tables {
            root: self.vttbr & ADDRESS & !1,
            level,
        }))
    }
}

/// Whose translation an entry of a TLB is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// VMID; 0 for EL2.
    pub vmid: u16,
    /// ASID.
    pub asid: u16,
}

/// A translation of a page or block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// Physical address of the page or block.
    physical: u64,
    /// Width of the offset in it.
    shift: u32,
    /// Of all ASIDs.
    global: bool,
}

/// Key of an entry: for a global one, the ASID is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    tag: Tag,
    global: bool,
    shift: u32,
    number: u64,
}

/// Widths that a page or block may have: 4 KiB, 2 MiB, 1 GiB. Contiguous hints are not used.
const SHIFTS: [u32; 3] = [12, 21, 30];

/// Entries that a TLBI invalidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entries {
    /// Everything.
    All,
    /// Everything of a VM; of EL2 with VMID 0.
    Vm(u16),
    /// A page, for all ASIDs.
    Page(u16, u64),
}

/// TLB, walk cache and IPA cache of a CPU.
#[derive(Debug)]
pub struct Tlb {
    main: Sets<Key, Translation>,
    /// Table of the last level, as address in front of stage 2.
    tables: Sets<Key, u64>,
    ipa: Sets<Key, Translation>,
}

/// A walk that the model could not make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotKnown;

impl From<Unknown> for NotKnown {
    fn from(_: Unknown) -> Self {
        Self
    }
}

/// What a lookup gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Physical address.
    pub physical: u64,
    /// Physical addresses of descriptors that were read, in order; nothing was in the TLB if there is one, or `walked` says so.
    pub read: Vec<u64>,
    /// It was not in the TLB.
    pub walked: bool,
}

impl Tlb {
    /// An empty one.
    pub fn new(geometry: &Geometry) -> Self {
        Self {
            main: Sets::new(geometry.tlb.size, geometry.tlb),
            tables: Sets::new(geometry.walk_cache.size, geometry.walk_cache),
            ipa: Sets::new(geometry.ipa_cache.size, geometry.ipa_cache),
        }
    }

    /// Translates an address, and remembers how.
    ///
    /// # Errors
    ///
    /// A descriptor is not known or not valid, or tables have another granule.
    pub fn translate(
        &mut self,
        regime: &Regime,
        address: u64,
        memory: &Memory,
    ) -> Result<Found, NotKnown> {
        let address = untagged(address);
        let tag = regime.tag();
        for shift in SHIFTS {
            for global in [false, true] {
                let key = key(tag, global, shift, address);
                if let Some(known) = self.main.find(key.number, key) {
                    return Ok(Found {
                        physical: known.physical | address & mask(shift),
                        ..Found::default()
                    });
                }
            }
        }
        let mut read = Vec::new();
        let stage1 = regime.stage1(address)?;
        let first = match stage1 {
            None => Translation {
                physical: 0,
                // Flat: as large as stage 2 has it.
                shift: 47,
                global: true,
            },
            Some(tables) => self.first(regime, tables, address, memory, &mut read)?,
        };
        let middle = first.physical | address & mask(first.shift);
        let second = self.second(regime, middle, memory, &mut read)?;
        let shift = SHIFTS
            .into_iter()
            .rev()
            .find(|shift| *shift <= first.shift.min(second.shift));
        let shift = shift.unwrap_or(12);
        let physical = second.physical | middle & mask(second.shift);
        let whole = Translation {
            physical: physical & !mask(shift),
            shift,
            global: first.global,
        };
        let key = key(tag, first.global, shift, address);
        self.main.fill(key.number, key, whole);
        Ok(Found {
            physical,
            read,
            walked: true,
        })
    }

    /// Stage 1.
    fn first(
        &mut self,
        regime: &Regime,
        tables: Tables,
        address: u64,
        memory: &Memory,
        read: &mut Vec<u64>,
    ) -> Result<Translation, NotKnown> {
        let tag = regime.tag();
        let cached = key(tag, false, 21, address);
        let known = self.tables.find(cached.number, cached).copied();
        let (mut table, mut level) = match known {
            Some(table) => (table, 3),
            None => (tables.root, tables.level),
        };
        loop {
            let place = table + index(address, level) * 8;
            let second = self.second(regime, place, memory, read)?;
            let place = second.physical | place & mask(second.shift);
            read.push(place);
            let descriptor = memory.word(place).ok_or(NotKnown)?;
            match leaf(descriptor, level)? {
                Some(shift) => {
                    return Ok(Translation {
                        physical: descriptor & ADDRESS & !mask(shift),
                        shift,
                        // nG
                        global: descriptor >> 11 & 1 == 0,
                    });
                }
                None => {
                    table = descriptor & ADDRESS;
                    level += 1;
                    if level == 3 && known.is_none() {
                        self.tables.fill(cached.number, cached, table);
                    }
                }
            }
        }
    }

    /// Stage 2; flat where it is off.
    fn second(
        &mut self,
        regime: &Regime,
        ipa: u64,
        memory: &Memory,
        read: &mut Vec<u64>,
    ) -> Result<Translation, NotKnown> {
        let Some(tables) = regime.stage2()? else {
            return Ok(Translation {
                physical: 0,
                shift: 47,
                global: true,
            });
        };
        let tag = Tag {
            asid: 0,
            ..regime.tag()
        };
        for shift in SHIFTS {
            let key = key(tag, false, shift, ipa);
            if let Some(known) = self.ipa.find(key.number, key) {
                return Ok(*known);
            }
        }
        let (mut table, mut level) = (tables.root, tables.level);
        loop {
            // A start at level 1 may have several root tables behind each other.
            let place = if level == tables.level {
                table + (ipa >> shift_of(level)) * 8
            } else {
                table + index(ipa, level) * 8
            };
            read.push(place);
            let descriptor = memory.word(place).ok_or(NotKnown)?;
            if let Some(shift) = leaf(descriptor, level)? {
                let found = Translation {
                    physical: descriptor & ADDRESS & !mask(shift),
                    shift,
                    global: false,
                };
                let key = key(tag, false, shift, ipa);
                self.ipa.fill(key.number, key, found);
                return Ok(found);
            }
            table = descriptor & ADDRESS;
            level += 1;
        }
    }

    /// A TLBI.
    pub fn invalidate(&mut self, what: Entries) {
        let goes = |key: &Key| match what {
            Entries::All => true,
            Entries::Vm(vmid) => key.tag.vmid == vmid,
            Entries::Page(vmid, address) => {
                key.tag.vmid == vmid && key.number == untagged(address) >> key.shift
            }
        };
        self.main.remove_where(goes);
        self.tables.remove_where(goes);
        if !matches!(what, Entries::Page(..)) {
            self.ipa.remove_where(goes);
        }
    }
}

/// Width of the offset of a leaf of this level, `None` for a table; an error for what is not valid.
fn leaf(descriptor: u64, level: u32) -> Result<Option<u32>, NotKnown> {
    match (descriptor & 3, level) {
        (3, 3) | (1, 1 | 2) => Ok(Some(shift_of(level))),
        (3, _) => Ok(None),
        _ => Err(NotKnown),
    }
}

const fn shift_of(level: u32) -> u32 {
    12 + 9 * 3_u32.saturating_sub(level)
}

const fn index(address: u64, level: u32) -> u64 {
    address >> shift_of(level) & 0x1ff
}

const fn mask(shift: u32) -> u64 {
    (1 << shift) - 1
}

/// Without a tag in the uppermost byte: bit 55 decides about all above it.
const fn untagged(address: u64) -> u64 {
    ((address << 8).cast_signed() >> 8).cast_unsigned()
}

const fn key(tag: Tag, global: bool, shift: u32, address: u64) -> Key {
    let asid = if global { 0 } else { tag.asid };
    Key {
        tag: Tag { asid, ..tag },
        global,
        shift,
        number: address >> shift,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: u64 = 1;
    const TABLE: u64 = 3;
    const NG: u64 = 1 << 11;

    /// Stage 1 with 48 bits from level 0, in RAM that begins at IPA 0x4000_0000; stage 2 with 39 bits from level 1.
    fn regime() -> Regime {
        Regime {
            sctlr: 1,
            tcr: 16 | 16 << 16 | 2 << 30 | 1 << 22,
            ttbr0: 0x4000_0000,
            ttbr1: 0x4000_0000 | 7 << 48,
            hcr: 1,
            vtcr: 25 | 1 << 6,
            vttbr: 0x8000_0000 | 3 << 48,
            ..Regime::default()
        }
    }

    fn tlb() -> Tlb {
        Tlb::new(&Geometry::CORTEX_A53)
    }

    /// 0x5000 and 0x20_0000 of the VM, the first a page of its own ASID, the second a block of all; stage 2 in pages for the first 2 MiB of RAM and a block
    /// for the next.
    fn memory() -> Memory {
        let mut memory = Memory::default();
        let mut put = |place: u64, value: u64| memory.write(place, &value.to_le_bytes());
        // Stage 2: IPA 0x4000_0000 is entry 1 of level 1.
        put(0x8000_0008, 0x8000_1000 | TABLE);
        put(0x8000_1000, 0x8000_2000 | TABLE);
        put(0x8000_1008, 0x9020_0000 | VALID);
        for page in 0..8 {
            put(
                0x8000_2000 + page * 8,
                (0x9000_0000 + page * 0x2000) | TABLE,
            );
        }
        // Stage 1: root at IPA 0x4000_0000, then 0x4000_1000, ...; physical pages are twice as far apart.
        put(0x9000_0000, 0x4000_1000 | TABLE);
        put(0x9000_2000, 0x4000_2000 | TABLE);
        put(0x9000_4000, 0x4000_3000 | TABLE);
        put(0x9000_4008, 0x4020_0000 | VALID);
        put(0x9000_6028, 0x4000_4000 | TABLE | NG);
        memory
    }

    #[test]
    fn a_walk_reads_both_stages_and_a_second_one_nothing() {
        let (mut tlb, memory) = (tlb(), memory());
        let found = tlb.translate(&regime(), 0x5678, &memory).unwrap();
        assert_eq!(found.physical, 0x9000_8678);
        // Each of four tables and the page: three levels of stage 2, as each is in another page. Five times three and four.
        assert_eq!(found.read.len(), 19);
        assert_eq!(
            found.read[..4],
            [0x8000_0008, 0x8000_1000, 0x8000_2000, 0x9000_0000]
        );
        let again = tlb.translate(&regime(), 0x5abc, &memory).unwrap();
        assert_eq!(
            (again.physical, again.read.len(), again.walked),
            (0x9000_8abc, 0, false)
        );
    }

    #[test]
    fn caches_of_walks_spare_what_is_known() {
        let (mut tlb, memory) = (tlb(), memory());
        tlb.translate(&regime(), 0x5678, &memory).unwrap();
        tlb.invalidate(Entries::Page(3, 0x5000));
        // The walk cache names the last table no more, because it was of that page; the IPA cache knows all pages.
        let found = tlb.translate(&regime(), 0x5678, &memory).unwrap();
        assert_eq!(
            found.read,
            [0x9000_0000, 0x9000_2000, 0x9000_4000, 0x9000_6028]
        );
        // Beside it only a descriptor is read; it is not valid.
        assert_eq!(tlb.translate(&regime(), 0x6678, &memory), Err(NotKnown));
        // A block of both stages is one entry.
        let found = tlb.translate(&regime(), 0x20_0000, &memory).unwrap();
        assert_eq!(found.physical, 0x9020_0000);
        let found = tlb.translate(&regime(), 0x3f_ffff, &memory).unwrap();
        assert_eq!((found.physical, found.walked), (0x903f_ffff, false));
    }

    #[test]
    fn entries_belong_to_a_vm_and_an_asid_unless_they_are_global() {
        let (mut tlb, memory) = (tlb(), memory());
        let other = Regime {
            ttbr1: 0x4000_0000 | 8 << 48,
            ..regime()
        };
        for address in [0x5000, 0x20_0000] {
            tlb.translate(&regime(), address, &memory).unwrap();
        }
        assert!(tlb.translate(&other, 0x5000, &memory).unwrap().walked);
        assert!(!tlb.translate(&other, 0x20_0000, &memory).unwrap().walked);
        let other = Regime {
            vttbr: 0x8000_0000 | 4 << 48,
            ..regime()
        };
        assert!(tlb.translate(&other, 0x20_0000, &memory).unwrap().walked);
        tlb.invalidate(Entries::Vm(4));
        assert!(!tlb.translate(&regime(), 0x20_0000, &memory).unwrap().walked);
        assert!(tlb.translate(&other, 0x20_0000, &memory).unwrap().walked);
        tlb.invalidate(Entries::All);
        assert_eq!(
            tlb.translate(&regime(), 0x5000, &memory)
                .unwrap()
                .read
                .len(),
            19
        );
    }

    #[test]
    fn without_stage_1_the_address_is_that_of_stage_2() {
        let (mut tlb, memory) = (tlb(), memory());
        let off = Regime {
            sctlr: 0,
            ..regime()
        };
        let found = tlb.translate(&off, 0x4000_1010, &memory).unwrap();
        assert_eq!((found.physical, found.read.len()), (0x9000_2010, 3));
        let found = tlb.translate(&off, 0x4020_1010, &memory).unwrap();
        assert_eq!((found.physical, found.read.len()), (0x9020_1010, 2));
        assert_eq!(tlb.translate(&off, 0x5000_0000, &memory), Err(NotKnown));
    }

    #[test]
    fn el2_has_one_stage_and_a_high_half_of_nobody() {
        let (mut tlb, mut memory) = (tlb(), memory());
        let el2 = Regime {
            is_el2: true,
            sctlr: 1,
            tcr: 16,
            ttbr0: 0x7000_0000,
            hcr: 1,
            ..Regime::default()
        };
        for (place, value) in [
            (0x7000_0000_u64, 0x7000_1000 | TABLE),
            (0x7000_1000, 0x4000_0000 | VALID),
        ] {
            memory.write(place, &value.to_le_bytes());
        }
        let found = tlb.translate(&el2, 0x1234_5678, &memory).unwrap();
        assert_eq!((found.physical, found.read.len()), (0x5234_5678, 2));
        // A tag in the uppermost byte is no part of the address.
        let found = tlb.translate(&el2, 0x5500_0000_1234_5678, &memory).unwrap();
        assert!(!found.walked);
    }

    #[test]
    fn another_granule_is_not_known() {
        let (mut tlb, memory) = (tlb(), memory());
        let large = Regime {
            tcr: regime().tcr | 1 << 14,
            ..regime()
        };
        assert_eq!(tlb.translate(&large, 0x5678, &memory), Err(NotKnown));
    }
}
