//! The slow path of a vCPU: compares its list registers with the state of its interrupts, serves
//! requests of other vCPUs, fills free list registers, and answers.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::shared::{ARRIVAL, ASKED, CONFIG, REQUESTS};
use super::words::Words;
use super::{Cpu, Distributor, Host, Notify, Version, WORDS, each, lr, mask, numbers, place};

/// The interrupts in the list registers of a vCPU.
#[derive(Default)]
pub(super) struct Held {
    pub(super) pending: Words,
    pub(super) active: Words,
}

impl Held {
    #[inline(always)]
    pub(super) fn add(&mut self, entry: u64) {
        let (word, bit) = place(lr::vintid(entry));
        if entry & lr::PENDING != 0 {
            self.pending.add(word, bit);
        }
        if entry & lr::ACTIVE != 0 {
            self.active.add(word, bit);
        }
    }

    pub(super) fn get(&self, word: usize) -> u32 {
        self.pending.get(word) | self.active.get(word)
    }
}

/// The work ([`Cpu::work`]) of telling the owners of interrupts that another vCPU held.
const PASS_ON: u32 = 20;

/// Requests of other vCPUs about the interrupts of a word.
struct Requests {
    word: usize,
    clear_pending: u32,
    set_active: u32,
    clear_active: u32,
}

impl Requests {
    /// No requests.
    const NONE: Self = Self {
        word: WORDS,
        clear_pending: 0,
        set_active: 0,
        clear_active: 0,
    };
}

impl Cpu {
    /// Synchronizes the list registers with the state of the vCPU's interrupts, and serves what
    /// other vCPUs ask for. `changes` are bits as in [`super::shared::VcpuWords::busy`], for what
    /// this pCPU has changed itself.
    ///
    /// One exit serves the requests about one word, or the changes in word 0 and one word of SPIs.
    /// If there is more, the vCPU itself is among those to notify.
    #[inline(never)]
    pub(super) fn sync_lrs<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        changes: u32,
    ) -> Notify {
        self.inside = 0;
        self.work = 0;
        let shared = dist.vcpu_words(self.number);
        // A vCPU that drew a ticket up to this one marked its change before, so that the swap below
        // finds the mark.
        let ticket = shared.asked.load(Acquire);
        let busy = shared.busy.swap(0, SeqCst);
        // An arrival alters nothing of which a ready entry is made.
        let altered = if changes & ARRIVAL == 0 {
            changes | busy
        } else {
            busy
        };
        let changes = changes | busy;
        let all = changes & mask(dist.words()).wrapping_sub(1);
        let spis = all & !1;
        let one = spis & spis.wrapping_neg();
        let dirty = if changes & REQUESTS != 0 && all & 1 != 0 {
            1
        } else {
            all & 1 | one
        };
        let later = all & !dirty;
        let mut notify = Notify::NOBODY;
        if later != 0 {
            shared
                .busy
                .fetch_or(later | changes & (REQUESTS | ASKED), SeqCst);
            notify = Notify((mask(self.number) & dist.online()) as u8);
        }
        let (spilled, waiting) = (self.spilled.get(0), self.waiting.is_empty());
        if changes & CONFIG != 0 {
            self.private_changed(dist, host);
        }
        self.forget_ready(dirty & altered);
        let mut scan = dirty | 1 | self.count_ends(dist, host);

        let requests = if changes & REQUESTS != 0 && dirty != 0 {
            self.take_requests(dist, dirty.trailing_zeros() as usize)
        } else {
            Requests::NONE
        };
        let mut held = Held::default();
        let suspects = dirty | u32::from(matches!(H::VERSION, Version::V2));
        for n in each(0, !host.empty() & Self::all_lrs(host)) {
            let entry = host.lr(n);
            let (word, _) = place(lr::vintid(entry));
            if entry & lr::STATE != 0 && mask(word) & suspects == 0 {
                held.add(entry);
            } else {
                scan |= self.sync_lr(dist, host, n, &requests, &mut held);
            }
        }
        if requests.word < WORDS {
            notify |= self.apply_requests(dist, host, &requests, &held);
        }
        for word in numbers(self.held_words) {
            notify |= self.release(dist, word, held.get(word) | self.spilled.get(word));
        }

        notify |= self.fill(dist, host, scan, &mut held);
        if !self.spilled.is_empty() && self.waiting.is_empty() {
            self.unspill(dist, host);
        }
        if waiting != self.waiting.is_empty() || spilled != self.spilled.get(0) {
            self.direct_changed(dist);
        }
        self.update_maintenance(host);
        if changes & ASKED != 0 && later == 0 {
            self.publish(dist, host);
            shared.answered.store(ticket, Release);
            if shared.asked.load(Acquire) != ticket {
                // Drawn since then: its mark may be among those that the swap has taken.
                notify |= dist.mark(self.number, ASKED);
            }
        }
        notify
    }

    /// Updates the fast paths and the enables of physical PPIs after a change to the configuration
    /// of private interrupts.
    pub(super) fn private_changed<H: Host>(&mut self, dist: &Distributor, host: &mut H) {
        self.sgis_changed(dist);
        self.enables_changed(dist, host);
    }

    /// Updates the same after a change to the enables of private interrupts alone.
    pub(super) fn enables_changed<H: Host>(&mut self, dist: &Distributor, host: &mut H) {
        self.hot_changed(dist);
        let bank = &dist.vcpu_words(self.number).bank;
        let wanted = bank.enable.load(SeqCst) & bank.hw.load(Relaxed);
        for intid in each(0, wanted & !self.hw_enabled) {
            host.enable(dist.physical(intid));
        }
        for intid in each(0, self.hw_enabled & !wanted) {
            host.disable(dist.physical(intid));
        }
        self.hw_enabled = wanted;
    }

    /// Takes the requests about a word. An interrupt that is to become active is set in `holds`
    /// before it is cleared in the request word, so that it is always in at least one of them.
    fn take_requests(&mut self, dist: &Distributor, word: usize) -> Requests {
        let shared = dist.vcpu_words(self.number);
        let coming = shared.set_active.get(word);
        if coming != 0 && word != 0 {
            self.hold(dist, word, coming);
        }
        let set_active = shared.set_active.take(word);
        let clear_pending = shared.clear_pending.take(word);
        // Who makes an interrupt active withdraws the request to clear that first. So one that is
        // found after this has come later, and counts.
        let clear_active = shared.clear_active.take(word);
        Requests {
            word,
            set_active: set_active & !clear_active,
            clear_pending,
            clear_active,
        }
    }

    /// Compares a list register with the state of its interrupt, and corrects it. Returns the words
    /// that have to be scanned because of it.
    fn sync_lr<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        n: u32,
        requests: &Requests,
        held: &mut Held,
    ) -> u32 {
        let before = host.lr(n);
        let intid = lr::vintid(before);
        let (word, bit) = place(intid);
        if before & lr::STATE == 0 {
            // The interrupt has ended, and `lr::EOI` was set.
            host.set_lr(n, 0);
            return mask(word);
        }
        let bank = dist.bank(self.number, word);
        let hw = before & lr::HW != 0;
        let mut entry = before;
        let requests = if requests.word == word {
            requests
        } else {
            &Requests::NONE
        };
        if requests.clear_active & bit != 0 && entry & lr::ACTIVE != 0 {
            entry &= !lr::ACTIVE;
            self.by_register.remove(word, bit);
            if hw {
                host.deactivate(lr::pintid(entry));
            }
        }
        if requests.clear_pending & bit != 0 && entry & lr::PENDING != 0 {
            self.latched.remove(word, bit);
            if hw || bank.up() & bit == 0 {
                entry &= !lr::PENDING;
            }
            if hw {
                host.deactivate(lr::pintid(entry));
            }
        }
        if requests.set_active & bit != 0 {
            if hw && entry & lr::PENDING != 0 {
                // Pending and active at once is not allowed for hardware interrupts: the physical
                // GIC keeps the pending state.
                entry &= !lr::PENDING;
                let latched = self.latched.get(word) & bit;
                self.latched.remove(word, bit);
                self.leave_to_gic(dist, host, intid, latched);
            }
            if hw {
                // Its pending state may just have been requeued, and the physical interrupt
                // deactivated.
                host.set_active(lr::pintid(entry));
            }
            if entry & lr::ACTIVE == 0 {
                self.by_register.add(word, bit);
            }
            entry |= lr::ACTIVE;
        }
        let mine = dist.owns(self.number, word) & bit != 0;
        if entry & lr::PENDING != 0 && !self.may_stay(dist, entry, mine) {
            self.requeue_pending(dist, host, entry);
            entry &= !lr::PENDING;
        }
        if intid < 16 && dist.is_v2() && entry & lr::PENDING != 0 {
            // Pending twice from one sender is pending once.
            let from = 1u8 << lr::source(entry);
            let sources = &dist.vcpu_words(self.number).sources[intid as usize & 15];
            if sources.fetch_and(!from, SeqCst) & !from == 0 {
                bank.latch.fetch_and(!bit, SeqCst);
            }
        }
        // Another vCPU may wait for its end: the new owner, or another sender of the same SGI.
        let next_source = intid < 16 && dist.is_v2() && bank.latch.load(Acquire) & bit != 0;
        if !hw && entry & lr::STATE != 0 && (!mine || next_source) {
            entry |= lr::EOI;
        }
        if entry & lr::STATE == 0 {
            host.set_lr(n, 0);
            return mask(word);
        }
        if entry != before {
            host.set_lr(n, entry);
        }
        held.add(entry);
        if entry == before { 0 } else { mask(word) }
    }

    /// Whether the pending state in a list register may stay there as it is.
    fn may_stay(&self, dist: &Distributor, entry: u64, mine: bool) -> bool {
        let intid = lr::vintid(entry);
        let (word, bit) = place(intid);
        let bank = dist.bank(self.number, word);
        let still = entry & lr::HW != 0
            || (bank.edge.load(Relaxed) | self.latched.get(word) | bank.level.load(SeqCst)) & bit
                != 0;
        still && mine && bank.deliverable(dist.groups()) & bit != 0 && self.is_current(dist, entry)
    }

    /// Whether a list register's entry has the current group and priority of the interrupt. While
    /// the interrupt is active, the entry keeps the group and priority with which it was taken; if
    /// it becomes pending again, it may need others.
    pub(super) fn is_current(&self, dist: &Distributor, entry: u64) -> bool {
        (entry ^ self.entry(dist, lr::vintid(entry))) & lr::GUEST == 0
    }

    /// Moves the pending state of a list register's entry back out of it. The caller changes the
    /// list register.
    pub(super) fn requeue_pending<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        entry: u64,
    ) {
        let intid = lr::vintid(entry);
        let (word, bit) = place(intid);
        let bank = dist.bank(self.number, word);
        let shared = dist.vcpu_words(self.number);
        let edge = bank.edge.load(Relaxed) & bit != 0;
        let latched = self.latched.get(word) & bit;
        if entry & lr::HW != 0 && bank.enable.load(SeqCst) & bit == 0 {
            host.deactivate(lr::pintid(entry));
            self.leave_to_gic(dist, host, intid, latched);
        } else if entry & lr::HW != 0 {
            dist.by_software(self.number, word)
                .fetch_or(latched, SeqCst);
            bank.latch.fetch_or(bit, SeqCst);
        } else if shared.clear_pending.take_bit(word, bit) {
            // A request to clear it has not been served yet. In the latch the pending state would
            // escape that request, since the latch holds what became pending after it. So drop it.
        } else if edge || latched != 0 {
            if intid < 16 && dist.is_v2() {
                let sources = &shared.sources[intid as usize & 15];
                sources.fetch_or(1 << lr::source(entry), SeqCst);
            }
            bank.latch.fetch_or(bit, SeqCst);
        }
        self.latched.remove(word, bit);
    }

    /// Leaves the pending state of a hardware interrupt to the physical GIC: that of an edge, or
    /// one that a register write has made (`by_software`, its bit), by its pending bit; that of a
    /// level by its line.
    pub(super) fn leave_to_gic<H: Host>(
        &self,
        dist: &Distributor,
        host: &mut H,
        intid: u32,
        by_software: u32,
    ) {
        let (word, bit) = place(intid);
        let edge = dist.bank(self.number, word).edge.load(Relaxed);
        if (edge | by_software) & bit != 0 {
            dist.by_software(self.number, word)
                .fetch_or(by_software & bit, SeqCst);
            host.set_pending(dist.physical(intid), true);
        }
    }

    /// Serves requests about interrupts that are in no list register.
    fn apply_requests<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        requests: &Requests,
        held: &Held,
    ) -> Notify {
        let word = requests.word;
        let shared = dist.vcpu_words(self.number);
        let bank = dist.bank(self.number, word);
        let hw = bank.hw.load(Relaxed);
        let ended = requests.clear_active & self.spilled.get(word);
        if ended != 0 {
            self.end_spilled(dist, host, word, ended);
        }
        let clear = requests.clear_pending & hw;
        if clear != 0 {
            if word == 0 {
                for intid in each(0, clear) {
                    host.set_pending(dist.physical(intid), false);
                }
            }
            let gone = bank.latch.fetch_and(!clear, SeqCst) & clear;
            for intid in each(
                word,
                gone & !held.active.get(word) & !self.spilled.get(word),
            ) {
                host.deactivate(dist.physical(intid));
            }
        }
        if word == 0 && shared.set_pending.load(Relaxed) != 0 {
            let asked = shared.set_pending.swap(0, SeqCst) & hw;
            self.make_pending(dist, host, asked);
        }
        // Made active by a register write, and in no list register here: spilled until one is free.
        let owned = bank.active.load(SeqCst) & dist.owns(self.number, word);
        let coming = (requests.set_active | owned) & !held.get(word) & !self.spilled.get(word);
        if coming == 0 {
            return Notify::NOBODY;
        }
        let mut notify = Notify::NOBODY;
        let mut theirs = 0;
        for v in (0..dist.vcpus()).filter(|v| *v != self.number && word != 0) {
            let its = coming & dist.vcpu_words(v).holds.get(word);
            let asked = its & requests.set_active;
            if asked != 0 {
                dist.vcpu_words(v).set_active.add(word, asked);
                notify |= dist.mark(v, mask(word) | REQUESTS);
            }
            theirs |= its;
        }
        let coming = coming & !theirs;
        if coming == 0 {
            return notify;
        }
        // The physical GIC keeps any pending state.
        let pending = bank.latch.fetch_and(!(coming & hw), SeqCst) & hw;
        for intid in each(word, coming & hw) {
            if pending & place(intid).1 != 0 {
                let soft = dist.by_software(self.number, word).load(SeqCst);
                self.leave_to_gic(dist, host, intid, soft);
            }
            host.set_active(dist.physical(intid));
        }
        if word != 0 {
            bank.held.fetch_or(coming & !hw, SeqCst);
        }
        self.spill_active(dist, host, word, coming);
        notify
    }

    /// Publishes the SPIs of a word that this vCPU still holds. The owners of released SPIs may
    /// take them now.
    pub(super) fn release(&mut self, dist: &Distributor, word: usize, now: u32) -> Notify {
        let shared = dist.vcpu_words(self.number);
        let before = shared.holds.get(word);
        if before == now {
            return Notify::NOBODY;
        }
        let gone = before & !now;
        shared.holds.set(word, now);
        if now == 0 {
            self.held_words &= !mask(word);
        }
        if gone == 0 {
            return Notify::NOBODY;
        }
        let bank = dist.bank(self.number, word);
        bank.held.fetch_and(!gone, SeqCst);
        dist.releases.fetch_add(1, SeqCst);
        let online = dist.is_online(self.number);
        let mine = if online {
            dist.owns(self.number, word)
        } else {
            0
        };
        let theirs = gone & !mine & (bank.latch.load(SeqCst) | bank.level.load(SeqCst));
        if theirs == 0 {
            return Notify::NOBODY;
        }
        self.work = self.work.wrapping_add(PASS_ON);
        dist.mark_owners(self.number, word, theirs)
    }

    /// Publishes the pending and active interrupts: those in list registers, pending physical PPIs
    /// and spilled interrupts.
    fn publish<H: Host>(&mut self, dist: &Distributor, host: &mut H) {
        let shared = dist.vcpu_words(self.number);
        let mut held = Held::default();
        for n in each(0, !host.empty() & Self::all_lrs(host)) {
            held.add(host.lr(n));
        }
        for intid in each(0, shared.bank.hw.load(Relaxed)) {
            if host.is_pending(dist.physical(intid)) {
                held.pending.add(0, place(intid).1);
            }
        }
        for word in 0..dist.words() {
            shared.lr_pending.set(word, held.pending.get(word));
            // A spilled interrupt may be back in a list register before the answer is read.
            shared
                .lr_active
                .set(word, held.active.get(word) | self.spilled.get(word));
        }
    }

    /// Finds the list register that holds an interrupt.
    pub(super) fn find<H: Host>(&self, host: &H, intid: u32) -> Option<(u32, u64)> {
        each(0, !host.empty() & Self::all_lrs(host))
            .map(|n| (n, host.lr(n)))
            .find(|(_, entry)| lr::vintid(*entry) == intid && entry & lr::STATE != 0)
    }
}
