//! The part of the distributor that all vCPUs of a VM share: configuration, in atomic words.

use core::sync::atomic::{AtomicU16, AtomicU32, Ordering::Relaxed};

use super::{IIDR, PIDR2, WORDS, place};

/// `GICD_CTLR` of a GIC with one Security state: DS and ARE read as one and cannot be written.
const CTLR_FIXED: u32 = 1 << 6 | 1 << 4;
/// `GICD_CTLR.EnableGrp0` and `EnableGrp1`.
const CTLR_GROUPS: u32 = 0b11;

/// Configuration of a VM's SPIs and its group enables. Words are independent of each other, so
/// relaxed accesses do; an owner acts on a change in the exit of the writer.
#[derive(Debug)]
#[repr(C)]
pub struct Distributor {
    ctlr: AtomicU32,
    typer: AtomicU32,
    words: AtomicU32,
    vtimer: AtomicU32,
    pub(super) enable: [AtomicU32; WORDS],
    pub(super) group: [AtomicU32; WORDS],
    pub(super) edge: [AtomicU32; WORDS],
    pub(super) linked: [AtomicU32; WORDS],
    priority: [AtomicU32; WORDS * 8],
    physical: [AtomicU16; WORDS * 32],
}

impl Default for Distributor {
    fn default() -> Self {
        Self::new()
    }
}

impl Distributor {
    /// A distributor that has nothing; see [`Self::reset`].
    pub const fn new() -> Self {
        Self {
            ctlr: AtomicU32::new(0),
            typer: AtomicU32::new(0),
            words: AtomicU32::new(0),
            vtimer: AtomicU32::new(0),
            enable: [const { AtomicU32::new(0) }; WORDS],
            group: [const { AtomicU32::new(0) }; WORDS],
            edge: [const { AtomicU32::new(0) }; WORDS],
            linked: [const { AtomicU32::new(0) }; WORDS],
            priority: [const { AtomicU32::new(0) }; WORDS * 8],
            physical: [const { AtomicU16::new(0) }; WORDS * 32],
        }
    }

    /// The distributor of a VM at reset: `spis` SPIs (a multiple of 32, at most 256), its virtual timer
    /// on the board's PPI `vtimer`.
    pub fn reset(&self, spis: u32, vtimer: u32) {
        let words = (spis / 32).min(WORDS as u32 - 1);
        self.words.store(words, Relaxed);
        // ITLinesNumber; IDbits = 9 (10-bit INTIDs); A3V; No1N: 1-of-N is not offered.
        self.typer
            .store(words | 9 << 19 | 1 << 24 | 1 << 25, Relaxed);
        self.vtimer.store(vtimer, Relaxed);
        self.ctlr.store(CTLR_FIXED, Relaxed);
        for bank in [&self.enable, &self.group, &self.edge, &self.linked] {
            bank.iter().for_each(|word| word.store(0, Relaxed));
        }
        self.priority.iter().for_each(|word| word.store(0, Relaxed));
        self.physical
            .iter()
            .for_each(|entry| entry.store(0, Relaxed));
    }

    /// Links an SPI of the VM to a physical SPI. Only before the VM runs.
    pub fn link(&self, vintid: u32, pintid: u32, edge: bool) {
        let (word, bit) = place(vintid);
        if let (Some(linked), Some(edges), Some(entry)) = (
            self.linked.get(word),
            self.edge.get(word),
            self.physical.get(vintid as usize),
        ) {
            linked.fetch_or(bit, Relaxed);
            if edge {
                edges.fetch_or(bit, Relaxed);
            }
            entry.store(pintid as u16, Relaxed);
        }
    }

    /// Reads the 32-bit registers that guests read most, without a look at the rest.
    #[inline(always)]
    pub fn usual_read(&self, offset: u64) -> Option<u32> {
        if offset & !0x7c == 0x100 {
            let word = self.enable.get((offset & 0x7c) as usize / 4)?;
            return Some(word.load(Relaxed));
        }
        (offset == 4).then(|| self.typer.load(Relaxed))
    }

    /// Whether a 32-bit write enables what is enabled already.
    #[inline(always)]
    pub fn changes_nothing(&self, offset: u64, value: u32) -> bool {
        offset & !0x7c == 0x100
            && self
                .enable
                .get((offset & 0x7c) as usize / 4)
                .is_some_and(|word| value & !word.load(Relaxed) == 0)
    }

    /// The board's PPI behind the VM's virtual timer.
    #[inline(always)]
    pub(super) fn vtimer(&self) -> u32 {
        self.vtimer.load(Relaxed)
    }

    /// The physical INTID behind a linked SPI.
    pub(super) fn physical(&self, vintid: u32) -> Option<u32> {
        let (word, bit) = place(vintid);
        if self.linked.get(word)?.load(Relaxed) & bit == 0 {
            return None;
        }
        Some(u32::from(self.physical.get(vintid as usize)?.load(Relaxed)))
    }

    /// Group enables: bit 0 for group 0, bit 1 for group 1.
    #[inline(always)]
    pub(super) fn groups(&self) -> u32 {
        self.ctlr.load(Relaxed) & CTLR_GROUPS
    }

    /// Writes `GICD_CTLR`; `true` if a group enable changed.
    pub(super) fn set_ctlr(&self, value: u32) -> bool {
        let new = value & CTLR_GROUPS | CTLR_FIXED;
        self.ctlr.swap(new, Relaxed) != new
    }

    /// Highest word of SPIs that the VM has; word 0 belongs to redistributors.
    #[inline(always)]
    pub(super) fn has_word(&self, word: usize) -> bool {
        word != 0 && word <= self.words.load(Relaxed) as usize
    }

    /// Priority of an SPI.
    pub(super) fn priority(&self, vintid: u32) -> u8 {
        let word = self
            .priority
            .get((vintid / 4) as usize)
            .map_or(0, |word| word.load(Relaxed));
        (word >> ((vintid % 4) * 8)) as u8
    }

    /// Four priorities, `n` = INTID / 4.
    pub(super) fn priorities(&self, n: usize) -> u32 {
        self.priority.get(n).map_or(0, |word| word.load(Relaxed))
    }

    /// Writes those priorities for which `mask` has bits.
    pub(super) fn set_priorities(&self, n: usize, value: u32, mask: u32) {
        if let Some(word) = self.priority.get(n) {
            // Five bits of priority, as in the list registers of every GICv3 that EL2 runs on.
            let mask = mask & 0xf8f8_f8f8;
            word.store(word.load(Relaxed) & !mask | value & mask, Relaxed);
        }
    }

    /// `GICD_ICFGR<n>`: two bits for each of 16 INTIDs, the upper one says edge.
    pub(super) fn config(&self, n: usize) -> u32 {
        let edges = self.edge.get(n / 2).map_or(0, |word| word.load(Relaxed));
        spread(edges >> ((n % 2) * 16))
    }

    /// Writes `GICD_ICFGR<n>`. The trigger of a linked interrupt is the plan's and stays.
    pub(super) fn set_config(&self, n: usize, value: u32) {
        let (Some(edges), Some(linked)) = (self.edge.get(n / 2), self.linked.get(n / 2)) else {
            return;
        };
        let shift = (n % 2) * 16;
        let mask = (0xffff << shift) & !linked.load(Relaxed);
        edges.store(
            edges.load(Relaxed) & !mask | gather(value) << shift & mask,
            Relaxed,
        );
    }

    /// Registers whose value is configuration or identification; `None` for the rest.
    #[inline(always)]
    pub(super) fn identification(&self, offset: u64) -> Option<u32> {
        Some(match offset {
            0x0000 => self.ctlr.load(Relaxed),
            0x0004 => self.typer.load(Relaxed),
            0x0008 => IIDR,
            0xffe8 => PIDR2,
            _ => return None,
        })
    }
}

/// Puts each of the low 16 bits at the upper of two.
pub(super) const fn spread(bits: u32) -> u32 {
    let mut x = bits & 0xffff;
    x = (x | x << 8) & 0x00ff_00ff;
    x = (x | x << 4) & 0x0f0f_0f0f;
    x = (x | x << 2) & 0x3333_3333;
    x = (x | x << 1) & 0x5555_5555;
    x << 1
}

/// The upper of each two bits, together in the low 16.
pub(super) const fn gather(pairs: u32) -> u32 {
    let mut x = (pairs >> 1) & 0x5555_5555;
    x = (x | x >> 1) & 0x3333_3333;
    x = (x | x >> 2) & 0x0f0f_0f0f;
    x = (x | x >> 4) & 0x00ff_00ff;
    (x | x >> 8) & 0xffff
}
