//! What a write to a bank register means: enable, group, pending and active bits of 32 interrupts at a
//! time, and what follows for list registers and for the board.

use core::sync::atomic::Ordering::Relaxed;

use super::cpu::{each, lr_mask};
use super::{Cpu, Distributor, Host, VTIMER, VTIMER_LR, WORDS, lr, place};

impl Cpu {
    /// Takes back what the guest has not yet acknowledged among the interrupts `bits` of `word`.
    fn take_back(&mut self, dist: &Distributor, host: &mut impl Host, word: usize, bits: u32) {
        for n in each(0, !host.empty() & (lr_mask(host) | 1 << VTIMER_LR)) {
            let entry = host.lr(n);
            let (its_word, bit) = place(lr::vintid(entry));
            if its_word != word || bit & bits == 0 || entry & lr::PENDING == 0 {
                continue;
            }
            if entry & lr::ACTIVE != 0 {
                host.set_lr(n, entry & !lr::PENDING);
                self.remember(word, bit);
            } else if entry & lr::HW != 0 {
                // The board signals it again when it may: a level by itself, an edge by its
                // pending bit.
                host.set_lr(n, 0);
                host.deactivate(lr::pintid(entry));
                if !self.is_level(dist, lr::vintid(entry)) {
                    host.set_pending(lr::pintid(entry), true);
                }
            } else {
                host.set_lr(n, 0);
                if entry & lr::EOI == 0 {
                    self.remember(word, bit);
                }
            }
        }
    }

    /// Brings the board in line with what the guest wants of its linked interrupts, and queues what waits.
    fn now_wanted(&mut self, dist: &Distributor, host: &mut impl Host, word: usize, bits: u32) {
        for intid in each(word, bits) {
            if let Some(pintid) = self.physical(dist, intid) {
                host.enable(pintid);
            }
        }
        for intid in each(word, bits & self.waiting(dist, word)) {
            self.queue(dist, host, intid);
        }
    }

    fn now_unwanted(&mut self, dist: &Distributor, host: &mut impl Host, word: usize, bits: u32) {
        for intid in each(word, bits) {
            if let Some(pintid) = self.physical(dist, intid) {
                host.disable(pintid);
            }
        }
        self.take_back(dist, host, word, bits);
    }

    /// Compares what is wanted of a word with what was, and acts.
    fn settle(&mut self, dist: &Distributor, host: &mut impl Host, word: usize, before: u32) {
        let after = self.wanted(dist, word);
        if word == 0 {
            self.hot_changed(dist);
        }
        let gone = before & !after;
        if gone != 0 {
            self.now_unwanted(dist, host, word, gone);
        }
        let come = after & !before;
        if come != 0 {
            self.now_wanted(dist, host, word, come);
        }
    }

    pub(super) fn enable(
        &mut self,
        dist: &Distributor,
        host: &mut impl Host,
        word: usize,
        bits: u32,
    ) {
        self.set_enable(dist, host, word, bits, true);
    }

    pub(super) fn disable(
        &mut self,
        dist: &Distributor,
        host: &mut impl Host,
        word: usize,
        bits: u32,
    ) {
        self.set_enable(dist, host, word, bits, false);
    }

    fn set_enable(
        &mut self,
        dist: &Distributor,
        host: &mut impl Host,
        word: usize,
        bits: u32,
        on: bool,
    ) {
        let enabled = match dist.enable.get(word) {
            _ if word == 0 => self.enable,
            Some(enable) => enable.load(Relaxed),
            None => return,
        };
        let new = if on { enabled | bits } else { enabled & !bits };
        if new == enabled {
            return;
        }
        let before = self.wanted(dist, word);
        if word == 0 {
            self.enable = new;
        } else if let Some(enable) = dist.enable.get(word) {
            // Other vCPUs may change other bits at the same time.
            if on {
                enable.fetch_or(bits, Relaxed)
            } else {
                enable.fetch_and(!bits, Relaxed)
            };
        }
        self.settle(dist, host, word, before);
    }

    pub(super) fn set_groups(
        &mut self,
        dist: &Distributor,
        host: &mut impl Host,
        word: usize,
        value: u32,
    ) {
        // What waits in a list register carries its group: take it back first.
        let before = self.wanted(dist, word);
        self.take_back(dist, host, word, u32::MAX);
        if word == 0 {
            self.group = value;
        } else if let Some(group) = dist.group.get(word) {
            group.store(value, Relaxed);
        }
        self.settle(dist, host, word, before);
        let waiting = self.waiting(dist, word);
        self.now_wanted(dist, host, word, waiting);
    }

    /// `GICD_CTLR` enabled or disabled groups.
    pub(super) fn groups_changed(&mut self, dist: &Distributor, host: &mut impl Host) {
        for word in 0..WORDS {
            let enabled = match dist.enable.get(word) {
                _ if word == 0 => self.enable,
                Some(enable) => enable.load(Relaxed),
                None => 0,
            };
            let wanted = self.wanted(dist, word);
            let gone = enabled & !wanted;
            if gone != 0 {
                self.now_unwanted(dist, host, word, gone);
            }
            if wanted != 0 {
                self.now_wanted(dist, host, word, wanted);
            }
        }
        self.hot_changed(dist);
    }

    /// Pending bits of a word as the guest may read them.
    pub(super) fn pending(&self, dist: &Distributor, host: &impl Host, word: usize) -> u32 {
        let (Some(pending), Some(level)) = (self.pending.get(word), self.level.get(word)) else {
            return 0;
        };
        let mut bits = pending | level;
        for n in each(0, !host.empty() & (lr_mask(host) | 1 << VTIMER_LR)) {
            let entry = host.lr(n);
            let (its_word, bit) = place(lr::vintid(entry));
            if its_word == word && entry & lr::PENDING != 0 {
                bits |= bit;
            }
        }
        let linked = if word == 0 {
            1 << VTIMER
        } else {
            dist.linked
                .get(word)
                .map_or(0, |linked| linked.load(Relaxed))
        };
        for intid in each(word, linked & !bits) {
            if self
                .physical(dist, intid)
                .is_some_and(|pintid| host.is_pending(pintid))
            {
                bits |= place(intid).1;
            }
        }
        bits
    }

    /// Active bits of a word as the guest may read them.
    pub(super) fn active(&self, host: &impl Host, word: usize) -> u32 {
        let mut bits = self.active.get(word).copied().unwrap_or(0);
        for n in each(0, !host.empty() & (lr_mask(host) | 1 << VTIMER_LR)) {
            let entry = host.lr(n);
            let (its_word, bit) = place(lr::vintid(entry));
            if its_word == word && entry & lr::ACTIVE != 0 {
                bits |= bit;
            }
        }
        bits
    }

    pub(super) fn set_pending(
        &mut self,
        dist: &Distributor,
        host: &mut impl Host,
        word: usize,
        bits: u32,
    ) {
        for intid in each(word, bits) {
            match self.physical(dist, intid) {
                Some(pintid) => host.set_pending(pintid, true),
                None => self.raise(dist, host, intid),
            }
        }
    }

    pub(super) fn clear_pending(
        &mut self,
        dist: &Distributor,
        host: &mut impl Host,
        word: usize,
        bits: u32,
    ) {
        // A level that is still up stays pending (IHI 0069H, 4.1.2).
        let held = self.level.get(word).map_or(0, |level| {
            level
                & each(word, bits)
                    .filter(|i| self.is_level(dist, *i))
                    .fold(0, |a, i| a | place(i).1)
        });
        self.take_back(dist, host, word, bits & !held);
        self.forget(word, bits);
        for intid in each(word, bits) {
            if let Some(pintid) = self.physical(dist, intid) {
                host.set_pending(pintid, false);
            }
        }
    }

    pub(super) fn set_active(
        &mut self,
        dist: &Distributor,
        host: &mut impl Host,
        word: usize,
        bits: u32,
    ) {
        for intid in each(word, bits) {
            if let Some((n, entry)) = self.find(host, intid) {
                host.set_lr(n, entry | lr::ACTIVE);
            } else if let Some(active) = self.active.get_mut(word) {
                *active |= place(intid).1;
            }
        }
        self.hot_changed(dist);
    }

    pub(super) fn clear_active(
        &mut self,
        dist: &Distributor,
        host: &mut impl Host,
        word: usize,
        bits: u32,
    ) {
        for intid in each(word, bits & self.active(host, word)) {
            let (_, bit) = place(intid);
            if let Some(active) = self.active.get_mut(word) {
                *active &= !bit;
            }
            if let Some((n, entry)) = self.find(host, intid)
                && entry & lr::ACTIVE != 0
            {
                let rest = entry & !lr::ACTIVE;
                host.set_lr(n, if rest & lr::PENDING != 0 { rest } else { 0 });
                if entry & lr::HW != 0 {
                    host.deactivate(lr::pintid(entry));
                }
            }
            if self.waiting(dist, word) & bit != 0 {
                self.queue(dist, host, intid);
            }
        }
        self.hot_changed(dist);
    }
}
