//! Short cuts past [`Cpu::sync_lrs`] for frequent cases that the fast paths do not cover: an SGI
//! while list registers are in use, one more SGI than there are list registers, the line of an
//! emulated device. Each first checks whether anything else is to be done, and if so does nothing.

use core::sync::atomic::{
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

use super::{
    Cpu, Distributor, Host, Maintenance, Notify, VTIMER_LR, Version, each, lr, mask, place,
};

impl Cpu {
    /// Whether other pCPUs have left nothing but SGIs for this vCPU.
    pub(super) fn is_quiet(&self, dist: &Distributor) -> bool {
        dist.vcpu_words(self.number).busy.load(Acquire) == 0
    }

    /// Delivers SGIs that other vCPUs have sent. Returns `false` if there may be more to do.
    pub(super) fn take_sgis<H: Host>(&mut self, dist: &Distributor, host: &mut H) -> bool {
        if !self.is_quiet(dist) || matches!(H::VERSION, Version::V2) {
            return false;
        }
        let latch = &dist.vcpu_words(self.number).bank.latch;
        for intid in each(0, latch.load(Acquire) & self.direct()) {
            let bit = mask(intid as usize);
            if latch.fetch_and(!bit, SeqCst) & bit != 0 && !self.place_sgi(host, intid) {
                latch.fetch_or(bit, SeqCst);
                return false;
            }
        }
        latch.load(Acquire) & self.direct() == 0 && self.direct() != 0
    }

    /// Delivers an SPI that has become pending without a line (an edge of a device, a doorbell, GICD_ISPENDR), while a list register is free and
    /// nothing else is to be done. `None`: there is more to it, and [`Cpu::sync_lrs`] follows. A leaf but for what ended before, so that the path of an interrupt
    /// needs no stack for it.
    #[inline(never)]
    pub fn take_edge<H: Host>(&mut self, dist: &Distributor, host: &mut H) -> Option<Notify> {
        let shared = dist.vcpu_words(self.number);
        let busy = shared.busy.load(Acquire);
        let word = busy.trailing_zeros() as usize;
        let bank = dist.spis(word).filter(|_| busy.is_power_of_two())?;
        let (owns, holds) = (shared.owns.at(word), shared.holds.at(word));
        let usable = host.usable();
        let free = host.empty() & usable;
        let all_free = free == usable;
        // Words in which an interrupt has more to it than to be in the latch.
        let special =
            self.ready_words | self.latched.some() | self.by_register.some() | self.asked.some();
        if busy & special | self.waiting.some() | self.spilled.some() != 0
            || shared.bank.latch.load(Relaxed) & self.direct() != 0
            || free == 0
            || shared
                .busy
                .compare_exchange(busy, 0, SeqCst, Relaxed)
                .is_err()
        {
            return None;
        }
        let (hw, level) = (bank.hw.load(Relaxed), !bank.edge.load(Relaxed));
        let mine = owns.load(Acquire) & bank.deliverable(dist.groups());
        let lines = bank.up() & (hw | level);
        let wanted = (bank.latch.load(SeqCst) | lines) & mine;
        let held = holds.load(Relaxed);
        // The mark may be for one of the word that is in a list register: its line has gone down, or its group or priority is another.
        let mut taken = wanted.is_power_of_two()
            && wanted & (hw | lines) == 0
            && (all_free || held == 0)
            && bank.held.fetch_or(wanted, SeqCst) & !held & wanted == 0;
        if taken {
            // As in [`Cpu::claim`].
            holds.store(held | wanted, Release);
            self.held_words |= busy;
            fence(SeqCst);
            taken = owns.load(Acquire) & bank.deliverable(dist.groups()) & wanted != 0
                && bank.latch.fetch_and(!wanted, SeqCst) & wanted != 0;
        }
        if !taken {
            // As it was: the vCPU looks at all of the word next.
            shared.busy.fetch_or(busy, SeqCst);
            return None;
        }
        let intid = (word as u32).wrapping_mul(32) | wanted.trailing_zeros();
        self.last = intid;
        self.inside = 0;
        // As [`Cpu::claim`] and [`Cpu::entry`] have it for one that is not of hardware.
        let group1 = bank.group.load(Relaxed) & wanted != 0;
        let mut entry = lr::entry(intid, dist.priority(self.number, intid), group1);
        if wanted & level != 0 {
            self.latched.add(word, wanted);
            entry |= lr::EOI;
        }
        host.set_lr(free.trailing_zeros(), entry | lr::PENDING);
        if all_free && held & !wanted != 0 {
            return self.release_others(dist, word, wanted);
        }
        Some(Notify::NOBODY)
    }

    /// Releases what the vCPU held of a word, where no list register is in use, except `kept`: it has ended.
    #[inline(never)]
    fn release_others(&mut self, dist: &Distributor, word: usize, kept: u32) -> Option<Notify> {
        Some(self.release(dist, word, kept))
    }

    /// Delivers an SGI of this vCPU to itself. Returns `false` if nothing has been done.
    pub(super) fn send_to_self<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        intid: u32,
    ) -> bool {
        if !self.is_quiet(dist) || matches!(H::VERSION, Version::V2) {
            return false;
        }
        let bit = mask(intid as usize);
        self.direct() & bit != 0 && self.place_sgi(host, intid)
    }

    /// Delivers an SGI of this vCPU to itself without reading a list register, while the list
    /// registers hold only SGIs, none of them active and pending, and nothing else is to be done.
    /// If no list register is free and the SGI is no more urgent than those in list registers, it
    /// waits. `from`: the sender, on a GICv2. Returns `false` if nothing has been done.
    pub(super) fn send_beside_sgis<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        intid: u32,
        from: u64,
    ) -> bool {
        let bit = mask(intid as usize);
        if self.inside == 0 || self.inside & bit != 0 || !self.is_quiet(dist) {
            return false;
        }
        let empty = host.empty();
        let free = empty & host.usable();
        let entry = self.sgi_entry(intid) | from;
        if free != 0 {
            // Allowed unless an interrupt waits that it would overtake.
            let may = self.direct() & bit != 0;
            if may {
                host.set_lr(free.trailing_zeros(), entry);
                self.inside |= bit;
            }
            return may;
        }
        let shared = dist.vcpu_words(self.number);
        if shared.bank.deliverable(dist.groups()) & !self.spilled.get(0) & bit == 0
            || host.groups() != self.groups
        {
            return false;
        }
        let own = self.of_entry(entry);
        let weaker = |other: u64| self.of_entry(other) > own;
        if each(0, self.inside).any(|intid| weaker(self.sgi_entry(intid)))
            || empty & 1 << VTIMER_LR == 0 && weaker(host.lr(VTIMER_LR))
        {
            return false;
        }
        if matches!(H::VERSION, Version::V2) {
            shared.sources[intid as usize & 15].fetch_or(mask(self.number) as u8, SeqCst);
        }
        shared.bank.latch.fetch_or(bit, SeqCst);
        self.waiting.add(0, bit);
        if !self.maintenance.refill {
            self.hold_back();
            self.update_maintenance(host);
        }
        true
    }

    /// Puts an SGI into the list register that holds it, or into a free one. Returns `false` if
    /// there is neither.
    fn place_sgi<H: Host>(&mut self, host: &mut H, intid: u32) -> bool {
        let empty = host.empty();
        self.inside = 0;
        for n in each(0, !empty & host.usable()) {
            let entry = host.lr(n);
            if lr::vintid(entry) == intid && entry & lr::STATE != 0 {
                let current = (entry ^ self.sgi_entry(intid)) & lr::GUEST == 0;
                if current {
                    host.set_lr(n, entry | lr::PENDING);
                }
                return current;
            }
        }
        let free = empty & host.usable();
        if free != 0 {
            host.set_lr(free.trailing_zeros(), self.sgi_entry(intid));
        }
        free != 0
    }

    /// Handles a maintenance interrupt for interrupts that have ended and are not pending again,
    /// and for SGIs that waited. Returns `false` if there may be more to do.
    pub(super) fn handle_maintenance_fast<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        notify: &mut Notify,
    ) -> bool {
        if !self.is_quiet(dist) || !self.spilled.is_empty() {
            return false;
        }
        // While `inside` is not 0, no list register has `lr::EOI` set.
        let ended = if self.inside == 0 { !host.empty() } else { 0 };
        for n in each(0, ended & host.usable()) {
            let entry = host.lr(n);
            if entry & lr::STATE != 0 {
                continue;
            }
            let (word, bit) = place(lr::vintid(entry));
            let bank = dist.bank(self.number, word);
            if (bank.latch.load(SeqCst) | bank.level.load(SeqCst)) & bit != 0 {
                return false;
            }
            host.set_lr(n, 0);
            self.latched.remove(word, bit);
            if word != 0 {
                *notify |= self.let_go(dist, word, bit);
            }
        }
        self.waiting.is_empty() || self.refill_sgis(dist, host)
    }

    /// Fills list registers with SGIs that waited, if nothing else waits. Returns `false` if there
    /// may be more to do.
    fn refill_sgis<H: Host>(&mut self, dist: &Distributor, host: &mut H) -> bool {
        let waiting = self.waiting.get(0);
        if self.waiting.some() != 1 || waiting & !0xffff != 0 || host.groups() != self.groups {
            return false;
        }
        let free = host.empty() & host.usable();
        let (mut rest, mut left) = (waiting, free);
        while rest != 0 && left != 0 {
            rest &= rest.wrapping_sub(1);
            left &= left.wrapping_sub(1);
        }
        let fits = rest == 0;
        rest = waiting;
        for n in each(0, free) {
            // If all of them fit, the order does not matter.
            let intid = if fits {
                rest.trailing_zeros()
            } else {
                self.choose(dist, 0);
                self.best[0] & 0xf
            };
            let bit = rest & mask(intid as usize & 31);
            if bit == 0 {
                break;
            }
            self.put_sgi(dist, host, n, intid);
            rest &= !bit;
            self.waiting.set(0, rest);
            self.last = intid;
        }
        if rest == 0 {
            self.direct_changed(dist);
            self.update_maintenance(host);
        }
        free != 0
    }

    /// Moves an SGI from the latch to a free list register, if it is still latched.
    fn put_sgi<H: Host>(&mut self, dist: &Distributor, host: &mut H, n: u32, intid: u32) {
        let bit = mask(intid as usize & 15);
        let latch = &dist.vcpu_words(self.number).bank.latch;
        if latch.fetch_and(!bit, SeqCst) & bit == 0 {
            return;
        }
        let source = if matches!(H::VERSION, Version::V2) {
            self.take_source(dist, intid)
        } else {
            Some(0)
        };
        let Some(source) = source else {
            return;
        };
        host.set_lr(n, self.sgi_entry(intid) | source);
        if source & lr::EOI != 0 {
            self.inside = 0;
        } else if self.inside != 0 {
            self.inside |= bit;
        }
    }

    /// Handles a moved line of an emulated device, for a level-sensitive SPI that this vCPU owns.
    /// Returns `false` if there may be more to do.
    pub(super) fn follow_line<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        intid: u32,
        up: bool,
    ) -> bool {
        let (word, bit) = place(intid);
        let bank = dist.bank(self.number, word);
        let fixed = bank.hw.load(Relaxed) | bank.edge.load(Relaxed) | bank.latch.load(SeqCst);
        if word == 0
            || fixed & bit != 0
            || !self.is_quiet(dist)
            || !self.waiting.is_empty()
            || !self.spilled.is_empty()
            || dist.owns(self.number, word) & bit == 0
        {
            return false;
        }
        let holds = dist.vcpu_words(self.number).holds.get(word);
        if !up {
            if holds & bit == 0 {
                return true;
            }
            let Some((n, entry)) = self.find(host, intid) else {
                return true;
            };
            if entry & lr::ACTIVE != 0 || self.latched.get(word) & bit != 0 {
                return entry & lr::PENDING == 0;
            }
            host.set_lr(n, 0);
            // Only the owner could wait for the release, and that is this vCPU.
            let _ = self.let_go(dist, word, bit);
            return true;
        }
        let free = host.empty() & host.usable();
        if bank.deliverable(dist.groups()) & bit == 0 {
            return true;
        }
        if holds & bit != 0 || free == 0 || bank.held.fetch_or(bit, SeqCst) & bit != 0 {
            return false;
        }
        self.hold(dist, word, bit);
        fence(SeqCst);
        if dist.owns(self.number, word) & bank.deliverable(dist.groups()) & bank.up() & bit == 0 {
            return false;
        }
        self.latched.remove(word, bit);
        self.inside = 0;
        host.set_lr(free.trailing_zeros(), self.entry(dist, intid) | lr::PENDING);
        true
    }

    /// Records that an SPI is no longer in a list register here.
    fn let_go(&mut self, dist: &Distributor, word: usize, bit: u32) -> Notify {
        let now = dist.vcpu_words(self.number).holds.get(word) & !bit;
        self.release(dist, word, now)
    }

    /// Requests the maintenance interrupts that are needed.
    pub(super) fn update_maintenance<H: Host>(&mut self, host: &mut H) {
        let what = Maintenance {
            refill: !self.waiting.is_empty(),
            eoi: !self.spilled.is_empty(),
        };
        if what != self.maintenance || what.refill {
            self.maintenance = what;
            host.ask(what);
        }
    }
}
