//! Interrupts that are active but in no list register: because more urgent ones needed it, or because the guest
//! made them active by a register.
//!
//! With EOImode 0 the guest ends interrupts in the order in which they nest, so one that it ends and that is in no
//! list register (ICH_HCR_EL2.EOIcount) is the most urgent one here. With EOImode 1 the order is its own, and its
//! writes to ICC_DIR_EL1 or GICC_DIR, which always trap, say which ([`Cpu::deactivate`]).

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::{
    Cpu, Distributor, Host, PRIORITY_BITS, VTIMER, VTIMER_LR, each, lr, mask, numbers, place,
};

impl Cpu {
    /// Keeps an active interrupt outside of the list registers: that of `entry`.
    pub(super) fn park<H: Host>(&mut self, dist: &Distributor, host: &mut H, entry: u64) {
        let intid = lr::vintid(entry);
        let (word, bit) = place(intid);
        if self.parked.is_empty() {
            // Ends that were counted up to here were of nothing.
            host.eoi_count();
        }
        self.parked.add(word, bit);
        if let Some(from) = self.parked_from.get_mut(intid as usize) {
            *from = lr::source(entry) as u8;
        }
        if let Some(slot) = self.parked_as.get_mut(intid as usize) {
            *slot = lr::priority(entry) | u8::from(entry & lr::GROUP1 != 0);
        }
        dist.bank(self.number, word).active.fetch_or(bit, SeqCst);
        if word != 0 {
            self.hold(dist, word, bit);
        }
    }

    /// One that is parked has ended.
    pub(super) fn end_parked<H: Host>(&mut self, dist: &Distributor, host: &mut H, intid: u32) {
        let (word, bit) = place(intid);
        let bank = dist.bank(self.number, word);
        self.parked.remove(word, bit);
        self.by_register.remove(word, bit);
        bank.active.fetch_and(!bit, SeqCst);
        if bank.linked.load(Relaxed) & bit != 0 {
            host.deactivate(dist.physical(intid));
        }
    }

    /// Ends as many as the virtual interface has counted; their words.
    pub(super) fn count_ends<H: Host>(&mut self, dist: &Distributor, host: &mut H) -> u32 {
        if self.parked.is_empty() {
            return 0;
        }
        let mut words = 0;
        for _ in 0..host.eoi_count() {
            let Some(intid) = self.most_urgent_parked(true) else {
                break;
            };
            self.end_parked(dist, host, intid);
            words |= mask((intid / 32) as usize);
        }
        words
    }

    /// The most urgent one here; with `taken` only of those that the guest has acknowledged.
    fn most_urgent_parked(&self, taken: bool) -> Option<u32> {
        let but = |word| {
            if taken { self.by_register.get(word) } else { 0 }
        };
        numbers(self.parked.some())
            .flat_map(|word| each(word, self.parked.get(word) & !but(word)))
            .min_by_key(|intid| self.parked_as(*intid) & PRIORITY_BITS)
    }

    /// Brings parked interrupts back where list registers are free, the most urgent first.
    pub(super) fn unpark<H: Host>(&mut self, dist: &Distributor, host: &mut H) {
        let timer = 1 << VTIMER;
        if self.parked.get(0) & timer != 0 && host.empty() & 1 << VTIMER_LR != 0 {
            self.bring_back(dist, host, VTIMER_LR, VTIMER);
        }
        for n in each(0, host.empty() & host.usable()) {
            let Some(intid) = self.most_urgent_parked(false).filter(|i| *i != VTIMER) else {
                return;
            };
            self.bring_back(dist, host, n, intid);
        }
    }

    fn parked_as(&self, intid: u32) -> u8 {
        self.parked_as.get(intid as usize).copied().unwrap_or(0)
    }

    fn bring_back<H: Host>(&mut self, dist: &Distributor, host: &mut H, n: u32, intid: u32) {
        let (word, bit) = place(intid);
        let from = self
            .parked_from
            .get(intid as usize)
            .map_or(0, |from| lr::from(u32::from(*from)));
        let its = self.parked_as(intid);
        let link = self.entry(dist, intid) & (lr::HW | lr::link(u32::MAX));
        let entry = lr::entry(intid, its & PRIORITY_BITS, its & 1 != 0);
        let entry = if link & lr::HW != 0 {
            entry | link
        } else {
            // It may be pending again, or somebody else wait for its end: that is to be told.
            entry | from | lr::EOI
        };
        host.set_lr(n, entry | lr::ACTIVE);
        self.parked.remove(word, bit);
        dist.bank(self.number, word).active.fetch_and(!bit, SeqCst);
    }
}
