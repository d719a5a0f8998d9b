//! The choice of the interrupts that get a list register: the most urgent first; among equally
//! urgent ones, in turn. So an interrupt that waits is never more urgent than one that is pending
//! in a list register, and as long as one waits, another is pending in a list register. When none
//! is pending there any more, a maintenance interrupt (ICH_HCR_EL2.NPIE) makes EL2 fill them again.

use core::sync::atomic::{
    Ordering::{Relaxed, SeqCst},
    fence,
};

use super::shared::of_groups;
use super::sync::Held;
use super::words::Words;
use super::{Cpu, Distributor, Host, Notify, VTIMER, VTIMER_LR, each, lr, mask, numbers, place};

/// The work of an exit ([`Cpu::work`]) after which it scans no further word, and after which it
/// places no further interrupt. The vCPU then notifies itself and goes on in another exit.
const TO_SCAN: u32 = 60;
const TO_PLACE: u32 = 140;
/// The work of a scan, besides that of the choice, of an attempt to place an interrupt, and of
/// moving another one out of a list register.
const SCAN: u32 = 14;
const PLACE: u32 = 24;
const MOVE: u32 = 24;

/// The list register that an interrupt can have.
enum LrChoice {
    /// A free list register.
    Free(u32),
    /// One with a less urgent interrupt that the guest has not taken.
    Swap(u32, u64),
    /// One whose interrupt is active.
    Spill(u32, u64),
    /// None at present.
    None,
}

/// The result of an attempt to place an interrupt.
enum Placed {
    Yes,
    /// The interrupt does not wait any more, or cannot be placed now, whatever list registers are
    /// free.
    Gone,
    NoLr,
}

/// Returns the urgency: a smaller number is more urgent. Interrupts of a group that the guest's CPU
/// interface does not signal come last.
const fn urgency(priority: u8, off: bool) -> u32 {
    (off as u32) << 8 | priority as u32
}

impl Cpu {
    /// Fills list registers with interrupts that wait in the words of `scan`, and with those that
    /// still wait from earlier scans.
    pub(super) fn fill<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        scan: u32,
        held: &mut Held,
    ) -> Notify {
        let groups = host.groups();
        let mut scan = scan;
        if groups != self.groups {
            self.groups = groups;
            scan |= self.waiting.some();
        }
        let mut notify = Notify::NOBODY;
        let full = host.empty() & host.usable() == 0;
        let mut later = 0;
        for word in numbers(scan) {
            if self.work > TO_SCAN {
                later |= mask(word);
            } else {
                notify |= self.rescan(dist, host, word, held);
            }
        }
        if full {
            self.tell_ends(dist, host);
        }
        for _ in 0..host.list_registers().wrapping_mul(2) {
            let Some(intid) = self.most_urgent() else {
                break;
            };
            if self.work > TO_PLACE {
                // A waiting interrupt may be more urgent than the pending ones in list registers.
                later |= 1;
                break;
            }
            let (word, bit) = place(intid);
            self.work = self.work.wrapping_add(PLACE);
            match self.try_place(dist, host, intid, held, &mut notify) {
                Placed::Yes => self.last = intid,
                // Happens at most once for each list register.
                Placed::Gone => {}
                Placed::NoLr if self.uncover_npie(dist, host, intid, held) => continue,
                Placed::NoLr => break,
            }
            self.waiting.remove(word, bit);
            self.choose(dist, word);
        }
        if later != 0 {
            notify |= dist.mark(self.number, later);
        }
        notify
    }

    /// Determines which interrupts of a word wait.
    fn rescan<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &H,
        word: usize,
        held: &Held,
    ) -> Notify {
        self.work = self.work.wrapping_add(SCAN);
        let bank = dist.bank(self.number, word);
        let latch = bank.latch.load(SeqCst);
        if latch | bank.level.load(SeqCst) == 0 {
            self.waiting.set(word, 0);
            self.asked.set(word, 0);
            return Notify::NOBODY;
        }
        let hw = bank.hw.load(Relaxed);
        let up = bank.up() & !hw;
        let mine = dist.owns(self.number, word) & bank.deliverable(dist.groups());
        let pending = held.pending.get(word);
        let active = held.active.get(word) & !pending;
        // SGIs of a GICv2 are delivered for one sender after another.
        let single = if word == 0 && dist.is_v2() { 0xffff } else { 0 };
        let again = latch & pending & !hw & !single;
        if again != 0 {
            // Pending twice is pending once.
            let taken = bank.latch.fetch_and(!again, SeqCst) & again;
            let stays = self.latched.get(word) | taken & !bank.edge.load(Relaxed);
            self.latched.set(word, stays);
        }
        // An active interrupt that is pending again shares its list register only if others are
        // free, and if its end is not told anyway.
        let mut alone = hw | single | !latch;
        if active & !alone != 0 {
            alone |= Self::told_ends(host, word);
        }
        let blocked = pending | self.spilled.get(word) | active & alone;
        let mut waiting = (latch | up) & mine & !blocked;
        let mut notify = Notify::NOBODY;
        if word != 0 {
            // Another vCPU still holds the SPI and must report its end. It is asked only once,
            // because it scans the word then and may ask back; and again when some vCPU has
            // released an SPI, since the holder may be a different vCPU now.
            let releases = dist.releases.load(SeqCst);
            if releases != self.asked_at {
                self.asked = Words::new();
                self.asked_at = releases;
            }
            let theirs = waiting & !hw & bank.held.load(SeqCst) & !self.holds(dist, word);
            let new = theirs & !self.asked.get(word);
            self.asked.set(word, theirs);
            if new != 0 {
                notify = dist.mark_holders(self.number, word, new);
            }
            waiting &= !theirs;
        }
        self.waiting.set(word, waiting);
        self.choose(dist, word);
        notify
    }

    /// The interrupts of a word that wait for an end of which EL2 is told; all of them if no list register is free. Who looked at one of them in each exit would
    /// come to none of the others, if there are more than an exit looks at.
    fn told_ends<H: Host>(host: &H, word: usize) -> u32 {
        if host.empty() & host.usable() == 0 {
            return u32::MAX;
        }
        each(0, host.usable()).fold(0, |told, n| {
            let entry = host.lr(n);
            let (of, bit) = place(lr::vintid(entry));
            let ends = entry & (lr::STATE | lr::HW | lr::EOI) == lr::ACTIVE | lr::EOI;
            if ends && of == word { told | bit } else { told }
        })
    }

    /// Requests maintenance interrupts at the end of active interrupts that are pending again, when
    /// no list register is free.
    fn tell_ends<H: Host>(&mut self, dist: &Distributor, host: &mut H) {
        for n in each(0, host.usable()) {
            let entry = host.lr(n);
            let (word, bit) = place(lr::vintid(entry));
            let again = dist.bank(self.number, word).latch.load(SeqCst) & bit != 0;
            if again && entry & (lr::STATE | lr::HW | lr::EOI) == lr::ACTIVE {
                host.set_lr(n, entry | lr::EOI);
            }
        }
    }

    fn holds(&self, dist: &Distributor, word: usize) -> u32 {
        dist.vcpu_words(self.number).holds.get(word)
    }

    /// Finds the most urgent interrupt that waits in a word, and stores it in `best`: its urgency
    /// in the upper half, its INTID in the lower.
    pub(super) fn choose(&mut self, dist: &Distributor, word: usize) {
        let waiting = self.waiting.get(word);
        if waiting == 0 {
            return;
        }
        let group = dist.bank(self.number, word).group.load(Relaxed);
        let on = waiting & of_groups(group, self.groups);
        let (bits, off) = if on != 0 {
            (on, false)
        } else {
            (waiting, true)
        };
        // Among equally urgent interrupts the next after the last one that was placed comes first.
        let last = self.last;
        let turn = (word as u32)
            .wrapping_mul(32)
            .wrapping_sub(last)
            .wrapping_sub(1);
        let priorities = dist.priorities(self.number, word);
        let mut best = u32::MAX;
        for n in each(0, bits) {
            self.work = self.work.wrapping_add(1);
            let priority = u32::from(priorities.get(n & 31));
            best = best.min(priority << 16 | turn.wrapping_add(n) & 0x1ff);
        }
        let intid = best.wrapping_add(last).wrapping_add(1) & 0x1ff;
        if let Some(kept) = self.best.get_mut(word) {
            *kept = urgency((best >> 16) as u8, off) << 16 | intid;
        }
    }

    /// Lets an interrupt wait that has been taken out of a list register.
    fn wait(&mut self, dist: &Distributor, intid: u32) {
        self.work = self.work.wrapping_add(MOVE);
        let (word, bit) = place(intid);
        let others = self.waiting.get(word);
        self.waiting.set(word, others | bit);
        let rank = |best: u32| best & !0xffff | self.turn(best & 0xffff);
        let new = self.of_entry(self.entry(dist, intid)) << 16 | intid;
        let kept = self.best.get(word).copied().unwrap_or(0);
        if (others == 0 || rank(new) < rank(kept))
            && let Some(best) = self.best.get_mut(word)
        {
            *best = new;
        }
    }

    /// Returns how far an interrupt comes after the last one that was placed.
    fn turn(&self, intid: u32) -> u32 {
        intid.wrapping_sub(self.last).wrapping_sub(1) & 0x1ff
    }

    pub(super) fn most_urgent(&self) -> Option<u32> {
        let mut best = u32::MAX;
        let mut found = None;
        for word in numbers(self.waiting.some()) {
            let kept = self.best.get(word).copied().unwrap_or(u32::MAX);
            let intid = kept & 0xffff;
            let rank = kept & !0xffff | self.turn(intid);
            if rank < best {
                best = rank;
                found = Some(intid);
            }
        }
        found
    }

    fn try_place<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        intid: u32,
        held: &mut Held,
        notify: &mut Notify,
    ) -> Placed {
        let (word, bit) = place(intid);
        if self.spilled.get(word) & bit != 0 {
            return Placed::Gone;
        }
        if held.active.get(word) & bit != 0 {
            // Pending again while active: both states in one list register. But if no other list
            // register is free, or the group or priority has changed since the interrupt became
            // active, it waits in the latch for the end, which may be long in coming: the pending
            // interrupts in list registers must be the most urgent ones.
            let Some((n, entry)) = self.find(host, intid) else {
                return Placed::Gone;
            };
            if host.empty() & host.usable() == 0 || !self.is_current(dist, entry) {
                host.set_lr(n, entry | lr::EOI);
                return Placed::Gone;
            }
            let Some(_) = self.claim(dist, intid, true, notify) else {
                return Placed::Gone;
            };
            host.set_lr(n, entry | lr::PENDING);
            held.pending.add(word, bit);
            return Placed::Yes;
        }
        if intid == VTIMER && host.empty() & 1 << VTIMER_LR == 0 {
            return Placed::Gone;
        }
        let choice = self.choose_lr(dist, host, intid);
        if let LrChoice::None = choice {
            return Placed::NoLr;
        }
        let Some(entry) = self.claim(dist, intid, false, notify) else {
            return Placed::Gone;
        };
        let n = match choice {
            LrChoice::Free(n) => n,
            LrChoice::Swap(n, other) => {
                let (word, bit) = place(lr::vintid(other));
                self.requeue_pending(dist, host, other);
                held.pending.remove(word, bit);
                self.wait(dist, lr::vintid(other));
                n
            }
            LrChoice::Spill(n, other) => {
                let (word, bit) = place(lr::vintid(other));
                if other & lr::PENDING != 0 {
                    self.requeue_pending(dist, host, other);
                    held.pending.remove(word, bit);
                }
                self.spill(dist, host, other);
                held.active.remove(word, bit);
                n
            }
            LrChoice::None => return Placed::NoLr,
        };
        let entry = entry | lr::PENDING;
        host.set_lr(n, entry);
        held.add(entry);
        Placed::Yes
    }

    /// Returns the urgency of a list register's entry.
    #[inline(always)]
    pub(super) fn of_entry(&self, entry: u64) -> u32 {
        let group = if entry & lr::GROUP1 != 0 { 2 } else { 1 };
        urgency(lr::priority(entry), self.groups & group == 0)
    }

    /// Chooses a list register for an interrupt.
    fn choose_lr<H: Host>(&self, dist: &Distributor, host: &H, intid: u32) -> LrChoice {
        let empty = host.empty();
        if intid == VTIMER {
            return LrChoice::Free(VTIMER_LR);
        }
        let free = empty & host.usable();
        if free != 0 {
            return LrChoice::Free(free.trailing_zeros());
        }
        let own = self.of_entry(self.entry(dist, intid));
        let mut weakest: Option<(u32, u64)> = None;
        let mut calmest: Option<(u32, u64)> = None;
        let mut any_pending = false;
        let less = |entry: u64, than: &Option<(u32, u64)>| {
            than.is_none_or(|(_, other)| self.of_entry(entry) > self.of_entry(other))
        };
        for n in each(0, host.usable()) {
            let entry = host.lr(n);
            any_pending |= entry & lr::STATE == lr::PENDING;
            if entry & lr::ACTIVE == 0 && less(entry, &weakest) {
                weakest = Some((n, entry));
            }
            if entry & lr::ACTIVE != 0 && less(entry, &calmest) {
                calmest = Some((n, entry));
            }
        }
        match (weakest, calmest) {
            (Some((n, entry)), _) if self.of_entry(entry) > own => LrChoice::Swap(n, entry),
            (_, Some((n, entry))) if !any_pending => LrChoice::Spill(n, entry),
            _ => LrChoice::None,
        }
    }

    /// Makes sure that EL2 learns, by NPIE, when all other pending interrupts have been taken while
    /// `intid` waits. Pending state that cannot be exchanged for it must not hide that: that of
    /// interrupts that are active too, and that of the virtual timer if it is less urgent, go back
    /// to the latch. Returns whether there was any of the first kind.
    fn uncover_npie<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        intid: u32,
        held: &mut Held,
    ) -> bool {
        let mut any = false;
        for n in each(0, host.usable()) {
            let entry = host.lr(n);
            if entry & lr::STATE == lr::STATE {
                let (word, bit) = place(lr::vintid(entry));
                self.requeue_pending(dist, host, entry);
                host.set_lr(n, entry & !lr::PENDING | lr::EOI);
                held.pending.remove(word, bit);
                any = true;
            }
        }
        let timer = host.lr(VTIMER_LR);
        let own = self.of_entry(self.entry(dist, intid));
        if timer & lr::STATE == lr::PENDING && self.of_entry(timer) > own {
            host.set_lr(VTIMER_LR, 0);
            self.requeue_pending(dist, host, timer);
            held.pending.remove(0, 1 << VTIMER);
            self.wait(dist, VTIMER);
        }
        any
    }

    /// Takes an interrupt that waits, and returns its entry without state. Returns `None` if it
    /// does not wait any more, or another vCPU holds it. `has`: it is in a list register here.
    fn claim(
        &mut self,
        dist: &Distributor,
        intid: u32,
        has: bool,
        notify: &mut Notify,
    ) -> Option<u64> {
        let (word, bit) = place(intid);
        let bank = dist.bank(self.number, word);
        let hw = bank.hw.load(Relaxed) & bit != 0;
        let shared = word != 0 && !hw && !has;
        if shared && bank.held.fetch_or(bit, SeqCst) & bit != 0 && self.holds(dist, word) & bit == 0
        {
            *notify |= dist.mark_holders(self.number, word, bit);
            return None;
        }
        if word != 0 {
            // A vCPU that disables it or routes it away reads `holds` afterwards; so this vCPU
            // reads enable and route after writing `holds`.
            self.hold(dist, word, bit);
            fence(SeqCst);
        }
        let mut taken = 0;
        let mut up = 0;
        if dist.owns(self.number, word) & bank.deliverable(dist.groups()) & bit != 0 {
            taken = bank.latch.fetch_and(!bit, SeqCst) & bit;
            up = if hw { 0 } else { bank.up() & bit };
        }
        let source = if taken != 0 && intid < 16 && dist.is_v2() {
            self.take_source(dist, intid)
        } else {
            Some(0)
        };
        if taken | up == 0 || source.is_none() {
            if !has && word != 0 {
                *notify |= self.release(dist, word, self.holds(dist, word) & !bit);
            }
            return None;
        }
        // Pending without its line: for an emulated level-sensitive interrupt, by the latch; for a
        // hardware interrupt, whose latch is set by its line too, by software.
        let latched = if hw {
            dist.by_software(self.number, word).fetch_and(!bit, SeqCst) & bit
        } else {
            taken & !bank.edge.load(Relaxed)
        };
        self.latched.remove(word, bit);
        self.latched.add(word, latched);
        if !has {
            self.by_register.remove(word, bit);
        }
        Some(self.entry(dist, intid) | source.unwrap_or(0))
    }

    /// GICv2: takes one sender of an SGI, and returns its part of the entry. If there are more
    /// senders, the SGI stays latched, and a maintenance interrupt is requested at its end.
    pub(super) fn take_source(&mut self, dist: &Distributor, intid: u32) -> Option<u64> {
        let shared = dist.vcpu_words(self.number);
        let senders = &shared.sources[intid as usize & 15];
        let sources = u32::from(senders.load(SeqCst));
        // The next sender after the last that was taken.
        let after = sources & (u32::MAX << 1).wrapping_shl(self.last_source);
        let first = if after != 0 { after } else { sources };
        let bit = first & first.wrapping_neg();
        if bit == 0 {
            return None;
        }
        let rest = u32::from(senders.fetch_and(!(bit as u8), SeqCst)) & !bit;
        self.last_source = bit.trailing_zeros();
        let more = if rest != 0 {
            shared.bank.latch.fetch_or(mask(intid as usize), SeqCst);
            lr::EOI
        } else {
            0
        };
        Some(lr::from(self.last_source) | more)
    }
}
