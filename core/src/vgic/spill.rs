//! Spilled interrupts: active but in no list register, because more urgent ones needed it, or
//! because the guest made them active by a register write.
//!
//! With EOImode 0 the guest ends interrupts in the order in which they nest. So when it ends one
//! that is in no list register (counted in ICH_HCR_EL2.EOIcount), that is the most urgent spilled
//! one. With EOImode 1 the guest chooses the order, and its writes to ICC_DIR_EL1 or GICC_DIR,
//! which always trap, name the interrupt ([`Cpu::deactivate`]).

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::planes::Planes;
use super::{Cpu, Distributor, Host, VTIMER, VTIMER_LR, WORDS, each, lr, mask, numbers, place};

/// The groups and priorities of the spilled interrupts of a word, as they were when each became
/// active. These determine how the interrupts nest, whatever the guest writes meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nesting {
    planes: Planes,
    group1: u32,
    /// The priority of the most urgent one that the guest has taken; [`NONE`] if there is none.
    top: u8,
}

/// The value for no priority: less urgent than any.
const NONE: u8 = u8::MAX;

impl Nesting {
    pub(super) const fn new() -> Self {
        Self {
            planes: Planes::new(),
            group1: 0,
            top: NONE,
        }
    }

    /// Resets to no spilled interrupts. Planes and groups may stay: for interrupts that are not
    /// spilled they mean nothing.
    pub(super) const fn clear(&mut self) {
        self.top = NONE;
    }

    /// Updates `top`; `taken` are the spilled interrupts of the word that the guest has taken.
    fn find_top(&mut self, taken: u32) {
        self.top = if taken == 0 {
            NONE
        } else {
            self.planes.most_urgent(taken).1
        };
    }
}

/// The work ([`Cpu::work`]) of an end, with the search for the one that ends, and of making
/// interrupts of a word active.
const END: u32 = 8;
const ACTIVATE: u32 = 40;

impl Cpu {
    /// Spills the active interrupt of `entry`.
    pub(super) fn spill<H: Host>(&mut self, dist: &Distributor, host: &mut H, entry: u64) {
        let intid = lr::vintid(entry);
        let (word, bit) = place(intid);
        let group1 = if entry & lr::GROUP1 != 0 { bit } else { 0 };
        if let Some(nesting) = self.nesting.get_mut(word) {
            nesting.planes.set(bit, lr::priority(entry));
            nesting.group1 = nesting.group1 & !bit | group1;
        }
        if let Some(from) = self.spilled_from.get_mut(intid as usize) {
            *from = lr::source(entry) as u8;
        }
        self.add_spilled(dist, host, word, bit);
        self.find_top(word);
    }

    /// Spills interrupts of a word that a register write has made active, with their current
    /// configuration.
    pub(super) fn spill_active<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        word: usize,
        bits: u32,
    ) {
        self.work = self.work.wrapping_add(ACTIVATE);
        let group1 = dist.bank(self.number, word).group.load(Relaxed);
        if let Some(nesting) = self.nesting.get_mut(word) {
            let priorities = dist.priorities(self.number, word);
            nesting.planes.take(bits, priorities);
            nesting.group1 = nesting.group1 & !bits | group1 & bits;
        }
        if word == 0 {
            for intid in each(0, bits & 0xffff) {
                self.spilled_from[intid as usize & 15] = 0;
            }
        }
        self.by_register.add(word, bits);
        self.add_spilled(dist, host, word, bits);
    }

    fn add_spilled<H: Host>(&mut self, dist: &Distributor, host: &mut H, word: usize, bits: u32) {
        if self.spilled.is_empty() {
            // With nothing spilled, the ends counted so far belong to no interrupt.
            host.eoi_count();
        }
        self.spilled.add(word, bits);
        dist.bank(self.number, word).active.fetch_or(bits, SeqCst);
        if word != 0 {
            self.hold(dist, word, bits);
        }
    }

    /// Ends spilled interrupts.
    pub(super) fn end_spilled<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        word: usize,
        bits: u32,
    ) {
        self.work = self.work.wrapping_add(END);
        let bank = dist.bank(self.number, word);
        self.spilled.remove(word, bits);
        self.by_register.remove(word, bits);
        bank.active.fetch_and(!bits, SeqCst);
        for intid in each(word, bits & bank.hw.load(Relaxed)) {
            host.deactivate(dist.physical(intid));
        }
        self.find_top(word);
    }

    /// Ends as many spilled interrupts as the virtual interface has counted, at most 31; returns
    /// their words.
    pub(super) fn count_ends<H: Host>(&mut self, dist: &Distributor, host: &mut H) -> u32 {
        if self.spilled.is_empty() {
            return 0;
        }
        let mut words = 0;
        for _ in 0..host.eoi_count() {
            let Some((word, bit)) = self.top_taken() else {
                break;
            };
            self.end_spilled(dist, host, word, bit);
            words |= mask(word);
        }
        words
    }

    /// Returns the spilled interrupts of a word that the guest has taken, without those that a
    /// register write has made active.
    fn taken(&self, word: usize) -> u32 {
        self.spilled.get(word) & !self.by_register.get(word)
    }

    fn find_top(&mut self, word: usize) {
        let taken = self.taken(word);
        if let Some(nesting) = self.nesting.get_mut(word) {
            nesting.find_top(taken);
        }
    }

    /// Returns the word and bit of the most urgent spilled interrupt that the guest has taken.
    fn top_taken(&self) -> Option<(usize, u32)> {
        let mut top = NONE;
        let mut word = WORDS;
        for (n, nesting) in self.nesting.iter().enumerate() {
            if nesting.top < top {
                top = nesting.top;
                word = n;
            }
        }
        let nesting = self.nesting.get(word)?;
        let (urgent, _) = nesting.planes.most_urgent(self.taken(word));
        (urgent != 0).then(|| (word, urgent & urgent.wrapping_neg()))
    }

    /// Moves spilled interrupts back to free list registers: first the most urgent of those that
    /// the guest has taken; then, in any order, the interrupts that register writes have made
    /// active, which the guest can end only by naming them.
    pub(super) fn unspill<H: Host>(&mut self, dist: &Distributor, host: &mut H) {
        let timer = 1 << VTIMER;
        if self.spilled.get(0) & timer != 0 && host.empty() & 1 << VTIMER_LR != 0 {
            self.reload_lr(dist, host, VTIMER_LR, 0, timer);
        }
        for n in each(0, host.empty() & host.usable()) {
            let next = self.top_taken().or_else(|| {
                let word = numbers(self.spilled.some()).next()?;
                let bits = self.spilled.get(word);
                Some((word, bits & bits.wrapping_neg()))
            });
            let Some((word, bit)) = next.filter(|next| *next != (0, timer)) else {
                return;
            };
            self.reload_lr(dist, host, n, word, bit);
        }
    }

    fn reload_lr<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        n: u32,
        word: usize,
        bit: u32,
    ) {
        let intid = (word as u32).wrapping_mul(32) | bit.trailing_zeros();
        let from = self
            .spilled_from
            .get(intid as usize)
            .map_or(0, |from| lr::from(u32::from(*from)));
        let Some(nesting) = self.nesting.get(word) else {
            return;
        };
        let (_, priority) = nesting.planes.most_urgent(bit);
        let entry = lr::entry(intid, priority, nesting.group1 & bit != 0);
        let bank = dist.bank(self.number, word);
        let entry = if bank.hw.load(Relaxed) & bit != 0 {
            entry | lr::hw(dist.physical(intid))
        } else {
            // It may be pending again, or another vCPU may wait for its end, so request a
            // maintenance interrupt at its end.
            entry | from | lr::EOI
        };
        host.set_lr(n, entry | lr::ACTIVE);
        self.spilled.remove(word, bit);
        bank.active.fetch_and(!bit, SeqCst);
        self.find_top(word);
    }
}
