//! Interrupts that are active but in no list register: because more urgent ones needed it, or because the guest
//! made them active by a register.
//!
//! With EOImode 0 the guest ends interrupts in the order in which they nest, so one that it ends and that is in no
//! list register (ICH_HCR_EL2.EOIcount) is the most urgent one here. With EOImode 1 the order is its own, and its
//! writes to ICC_DIR_EL1 trap while something is here ([`Cpu::deactivate`]).

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::{Cpu, Distributor, Host, VTIMER, VTIMER_LR, each, lr, numbers, place};

impl Cpu {
    /// Keeps an active interrupt outside of the list registers.
    pub(super) fn park<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        intid: u32,
        source: u32,
    ) {
        let (word, bit) = place(intid);
        if self.parked.is_empty() {
            // Ends that were counted up to here were of nothing.
            host.eoi_count();
        }
        self.parked.add(word, bit);
        if let Some(from) = self.parked_from.get_mut(intid as usize) {
            *from = source as u8;
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
            let Some(intid) = self.most_urgent_parked(dist, true) else {
                break;
            };
            self.end_parked(dist, host, intid);
            words |= 1 << (intid / 32);
        }
        words
    }

    /// The most urgent one here; with `taken` only of those that the guest has acknowledged.
    fn most_urgent_parked(&self, dist: &Distributor, taken: bool) -> Option<u32> {
        let but = |word| {
            if taken { self.by_register.get(word) } else { 0 }
        };
        numbers(self.parked.some())
            .flat_map(|word| each(word, self.parked.get(word) & !but(word)))
            .min_by_key(|intid| dist.priority(self.number, *intid))
    }

    /// Brings parked interrupts back where list registers are free, the most urgent first.
    pub(super) fn unpark<H: Host>(&mut self, dist: &Distributor, host: &mut H) {
        let timer = 1 << VTIMER;
        if self.parked.get(0) & timer != 0 && host.empty() & 1 << VTIMER_LR != 0 {
            self.bring_back(dist, host, VTIMER_LR, VTIMER);
        }
        for n in each(0, host.empty() & host.usable()) {
            let Some(intid) = self
                .most_urgent_parked(dist, false)
                .filter(|i| *i != VTIMER)
            else {
                return;
            };
            self.bring_back(dist, host, n, intid);
        }
    }

    fn bring_back<H: Host>(&mut self, dist: &Distributor, host: &mut H, n: u32, intid: u32) {
        let (word, bit) = place(intid);
        let from = self
            .parked_from
            .get(intid as usize)
            .map_or(0, |from| lr::from(u32::from(*from)));
        let entry = self.entry(dist, intid);
        let entry = if entry & lr::HW != 0 {
            entry
        } else {
            // It may be pending again, or somebody else wait for its end: that is to be told.
            entry | from | lr::EOI
        };
        host.set_lr(n, entry | lr::ACTIVE);
        self.parked.remove(word, bit);
        dist.bank(self.number, word).active.fetch_and(!bit, SeqCst);
    }
}
