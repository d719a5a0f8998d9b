//! Short cuts past [`Cpu::attend`] for what is frequent but not usual: an SGI where list registers are in use, one
//! more SGI than list registers, the line of an emulated device. Each looks first whether anything else is to be
//! done, and if so does nothing.

use core::sync::atomic::{
    Ordering::{Acquire, Relaxed, SeqCst},
    fence,
};

use super::{Cpu, Distributor, Host, Maintenance, Notify, Version, each, lr, mask, place};

impl Cpu {
    /// Nothing but SGIs waits for this vCPU's attention.
    pub(super) fn is_quiet(&self, dist: &Distributor) -> bool {
        dist.line(self.number).busy.load(Acquire) == 0
    }

    /// SGIs that others have sent. `false`: there may be more to do.
    pub(super) fn take_sgis<H: Host>(&mut self, dist: &Distributor, host: &mut H) -> bool {
        if !self.is_quiet(dist) || matches!(H::VERSION, Version::V2) {
            return false;
        }
        let latch = &dist.line(self.number).bank.latch;
        for intid in each(0, latch.load(Acquire) & self.direct()) {
            let bit = mask(intid as usize);
            if latch.fetch_and(!bit, SeqCst) & bit != 0 && !self.place_sgi(host, intid) {
                latch.fetch_or(bit, SeqCst);
                return false;
            }
        }
        latch.load(Acquire) & self.direct() == 0 && self.direct() != 0
    }

    /// An SGI of this vCPU to itself. `false`: nothing has been done.
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
        if self.direct() & bit != 0 && self.place_sgi(host, intid) {
            return true;
        }
        let bank = &dist.line(self.number).bank;
        let may = bank.wanted(dist.groups()) & !self.parked.get(0) & bit != 0;
        may && self.let_wait(dist, host, intid)
    }

    /// Puts an SGI into a list register: its own, or a free one. `false`: there is none.
    fn place_sgi<H: Host>(&mut self, host: &mut H, intid: u32) -> bool {
        let empty = host.empty();
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

    /// An SGI for which there is no list register, and which is no more urgent than what is pending in them: it
    /// waits. `false`: it is another case.
    fn let_wait<H: Host>(&mut self, dist: &Distributor, host: &mut H, intid: u32) -> bool {
        if host.empty() & host.usable() != 0 || host.groups() != self.groups {
            return false;
        }
        let own = self.of_entry(self.sgi_entry(intid));
        let mut any = false;
        for n in each(0, Self::all_lrs(host)) {
            let entry = host.lr(n);
            let pending = entry & lr::PENDING != 0;
            let own_lr = lr::vintid(entry) == intid && entry & lr::STATE != 0;
            any |= pending && n != super::VTIMER_LR;
            if own_lr || entry & lr::STATE == lr::STATE || pending && self.of_entry(entry) > own {
                return false;
            }
        }
        if any {
            let bit = mask(intid as usize);
            dist.line(self.number).bank.latch.fetch_or(bit, SeqCst);
            self.waiting.add(0, bit);
            self.choose(dist, 0);
            self.hold_back();
            self.tell(host);
        }
        any
    }

    /// Maintenance interrupt: ends that asked to be told and after which nothing comes, and SGIs that waited.
    /// `false`: there may be more to do.
    pub(super) fn maintain_quickly<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        notify: &mut Notify,
    ) -> bool {
        if !self.is_quiet(dist) || !self.parked.is_empty() {
            return false;
        }
        for n in each(0, !host.empty() & host.usable()) {
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

    /// Fills list registers with SGIs that waited, if nothing else did.
    fn refill_sgis<H: Host>(&mut self, dist: &Distributor, host: &mut H) -> bool {
        let only_sgis = self.waiting.some() == 1 && self.waiting.get(0) & !0xffff == 0;
        if !only_sgis || matches!(H::VERSION, Version::V2) || host.groups() != self.groups {
            return false;
        }
        let free = host.empty() & host.usable();
        let latch = &dist.line(self.number).bank.latch;
        for n in each(0, free) {
            let Some(intid) = self.most_urgent() else {
                break;
            };
            let bit = mask(intid as usize);
            if latch.fetch_and(!bit, SeqCst) & bit != 0 {
                host.set_lr(n, self.sgi_entry(intid));
                self.last = intid;
            }
            self.waiting.remove(0, bit);
            self.choose(dist, 0);
        }
        if self.waiting.is_empty() {
            self.direct_changed(dist);
            self.tell(host);
        }
        free != 0
    }

    /// The line of an emulated device has moved, for an SPI that is level-sensitive and this vCPU's. `false`: there
    /// may be more to do.
    pub(super) fn follow_line<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        intid: u32,
        up: bool,
    ) -> bool {
        let (word, bit) = place(intid);
        let bank = dist.bank(self.number, word);
        let fixed = bank.linked.load(Relaxed) | bank.edge.load(Relaxed) | bank.latch.load(SeqCst);
        if word == 0
            || fixed & bit != 0
            || !self.is_quiet(dist)
            || !self.waiting.is_empty()
            || !self.parked.is_empty()
            || dist.owns(self.number, word) & bit == 0
        {
            return false;
        }
        let holds = dist.line(self.number).holds.get(word);
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
            // Only the owner waits for it, and that is this vCPU.
            let _ = self.let_go(dist, word, bit);
            return true;
        }
        let free = host.empty() & host.usable();
        if bank.wanted(dist.groups()) & bit == 0 {
            return true;
        }
        if holds & bit != 0 || free == 0 || bank.held.fetch_or(bit, SeqCst) & bit != 0 {
            return false;
        }
        self.hold(dist, word, bit);
        fence(SeqCst);
        if dist.owns(self.number, word) & bank.wanted(dist.groups()) & bank.up() & bit == 0 {
            return false;
        }
        self.latched.remove(word, bit);
        host.set_lr(free.trailing_zeros(), self.entry(dist, intid) | lr::PENDING);
        true
    }

    /// An SPI is in no list register here any more.
    fn let_go(&mut self, dist: &Distributor, word: usize, bit: u32) -> Notify {
        let now = dist.line(self.number).holds.get(word) & !bit;
        self.release(dist, word, now)
    }

    /// Asks the virtual interface for the maintenance interrupts that are needed.
    pub(super) fn tell<H: Host>(&mut self, host: &mut H) {
        let what = Maintenance {
            refill: !self.waiting.is_empty(),
            eoi: !self.parked.is_empty(),
        };
        if what != self.told || what.refill {
            self.told = what;
            host.ask(what);
        }
    }
}
