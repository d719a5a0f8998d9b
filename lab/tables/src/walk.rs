//! Stage-2 tables as the hardware walks them (DDI 0487, D8.2 "Translation process" and D8.3 "Translation
//! table descriptor formats", 4 KiB granule). Written from there and sharing nothing with the code that
//! makes them: what both take for granted would not show.

/// Bytes of a page, and of a table.
pub const PAGE: u64 = 4096;
/// Output address of a descriptor: bits 47 to 12.
const ADDRESS: u64 = ((1 << 48) - 1) & !(PAGE - 1);
/// The contiguous hint.
const CONTIGUOUS: u64 = 1 << 52;
/// Attributes of a block or page: MemAttr, S2AP, SH, AF below, XN above.
const USE: u64 = 0x7fc | 3 << 53;
/// Descriptors in a row that share a contiguous hint.
const RUN: u64 = 16;

/// Mapping of a block or page descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Address in the VM.
    pub ipa: u64,
    /// Physical address.
    pub pa: u64,
    /// Bytes.
    pub size: u64,
    /// Attributes: MemAttr, S2AP, SH, AF and XN at their places in the descriptor.
    pub usage: u64,
    /// Whether it carries the contiguous hint.
    hint: bool,
}

/// Tables, mappings and faults below a root.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    /// Physical addresses of the tables, the root first.
    pub tables: Vec<u64>,
    /// Mappings, ascending by IPA.
    pub leaves: Vec<Leaf>,
    /// Contents that no table should hold.
    pub wrong: Vec<String>,
}

/// Reads a table of 512 descriptors at a physical address.
pub type Reader<'a> = dyn FnMut(u64) -> Result<Vec<u64>, String> + 'a;

/// Width of the IPA space and first level of VTCR_EL2 (DDI 0487, D24.2.220).
///
/// # Errors
///
/// It asks for something that this walker does not know.
fn start(vtcr: u64) -> Result<(u32, u32), String> {
    let field = |low: u32, bits: u32| (vtcr >> low) & ((1 << bits) - 1);
    let granule = field(14, 2);
    let (size, first) = (64 - field(0, 6), field(6, 2));
    // SL0: 0 starts at level 2, 1 at level 1. One table at the first level: no concatenation.
    let level = match first {
        1 if (31..=39).contains(&size) => 1,
        0 if (22..=30).contains(&size) => 2,
        _ => 0,
    };
    // HA, HD, HWU, NSW, NSA, DS, and SL2, all of which change what bits mean; TG0.
    let others = vtcr & (0x1ff << 21 | 3 << 29 | 3 << 32);
    if level == 0 || granule != 0 || others != 0 {
        return Err(format!(
            "VTCR_EL2 is {vtcr:#x}, which asks for other tables"
        ));
    }
    Ok((size as u32, level))
}

/// Walks everything below the root that VTTBR_EL2 names.
///
/// # Errors
///
/// A table cannot be read, or VTCR_EL2 asks for something else.
pub fn walk(vtcr: u64, vttbr: u64, read: &mut Reader<'_>) -> Result<Walk, String> {
    let (width, level) = start(vtcr)?;
    let root = vttbr & ((1 << 48) - 2);
    if !root.is_multiple_of(PAGE) {
        return Err(format!("VTTBR_EL2 is {vttbr:#x}, whose table is no page"));
    }
    let mut walk = Walk::default();
    walk.table(root, level, 0, 1 << width, read)?;
    walk.hints();
    Ok(walk)
}

impl Walk {
    /// Walks the table at `pa` for the addresses from `first` on, `all` bytes of them.
    fn table(
        &mut self,
        pa: u64,
        level: u32,
        first: u64,
        all: u64,
        read: &mut Reader<'_>,
    ) -> Result<(), String> {
        if self.tables.contains(&pa) {
            self.wrong
                .push(format!("the table at {pa:#x} is used twice"));
            return Ok(());
        }
        self.tables.push(pa);
        let span = 1_u64 << (12 + 9 * (3 - level));
        for (index, descriptor) in read(pa)?.into_iter().enumerate() {
            let ipa = first + index as u64 * span;
            let place = format!("entry {index} of the level {level} table at {pa:#x}");
            if descriptor & 1 == 0 {
                // The hardware looks at no other bit, but nobody should have written one.
                if descriptor != 0 {
                    self.wrong
                        .push(format!("{place} is invalid and yet {descriptor:#x}"));
                }
                continue;
            }
            if ipa >= all + first {
                self.wrong
                    .push(format!("{place} lies beyond the address space"));
            } else if descriptor & 2 == 0 && level == 3 {
                self.wrong
                    .push(format!("{place} is of the reserved kind: {descriptor:#x}"));
            } else if descriptor & 2 != 0 && level < 3 {
                if descriptor & !(ADDRESS | 3) != 0 {
                    self.wrong
                        .push(format!("{place} has more than an address: {descriptor:#x}"));
                }
                self.table(descriptor & ADDRESS, level + 1, ipa, span, read)?;
            } else {
                self.leaf(&place, descriptor, ipa, span);
            }
        }
        Ok(())
    }

    fn leaf(&mut self, place: &str, descriptor: u64, ipa: u64, span: u64) {
        let pa = descriptor & ADDRESS;
        if descriptor & !(ADDRESS | 3 | USE | CONTIGUOUS) != 0 || !pa.is_multiple_of(span) {
            self.wrong
                .push(format!("{place} has bits that must be 0: {descriptor:#x}"));
        }
        self.leaves.push(Leaf {
            ipa,
            pa: pa & !(span - 1),
            size: span,
            usage: descriptor & USE,
            hint: descriptor & CONTIGUOUS != 0,
        });
    }

    /// Checks the contiguous hints: one is right if all sixteen aligned descriptors have it, map contiguous memory that
    /// is aligned like them, and allow the same (D8.7.1 "The Contiguous bit").
    fn hints(&mut self) {
        for leaf in &self.leaves {
            let run = leaf.size * RUN;
            let (first, pa) = (leaf.ipa & !(run - 1), leaf.pa.wrapping_sub(leaf.ipa % run));
            let fits = |n: u64| {
                let expected = Leaf {
                    ipa: first + n * leaf.size,
                    pa: pa.wrapping_add(n * leaf.size),
                    ..*leaf
                };
                let at = |other: &Leaf| other.ipa;
                let found = self.leaves.binary_search_by_key(&expected.ipa, at);
                found.is_ok_and(|index| self.leaves[index] == expected)
            };
            if leaf.hint && !(pa.is_multiple_of(run) && (0..RUN).all(fits)) {
                self.wrong.push(format!(
                    "the contiguous hint at IPA {:#x} promises what is not so",
                    leaf.ipa
                ));
            }
        }
    }
}
