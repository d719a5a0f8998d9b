//! What the pCPU of a vCPU knows about its interrupts and nobody else touches, and the paths that are taken
//! often: straight, with everything worked out beforehand. What is unusual goes to [`Cpu::sync_lrs`].

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

use super::query::Query;
use super::shared::{ALL, REQUESTS};
use super::spill::Nesting;
use super::words::Words;
use super::{
    Distributor, Host, Maintenance, Notify, VCPUS, VTIMER, VTIMER_LR, Version, WORDS, lr, mask,
    place,
};

/// Hardware SPIs whose list register entry is kept ready, by the low bits of their physical INTID.
const READY: usize = 8;

/// See the module.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Cpu {
    /// What EL2 writes into [`VTIMER_LR`] when the virtual timer fires: everything that the guest has
    /// configured for it. 0 while the guest does not want the interrupt, and while others wait before it.
    vtimer_lr: u64,
    /// The number of the vCPU, below [`VCPUS`].
    pub(super) number: usize,
    /// SGIs that may go straight into a list register: wanted, not kept active, nothing waits before them.
    pub(super) direct: u32,
    /// The same without a look at who waits.
    vtimer_wanted: u64,
    /// What goes into a list register for each of the SGIs in `direct`.
    pub(super) sgis: [u64; 16],
    /// The same for hardware SPIs; 0 for none.
    ready: [u64; READY],
    ready_words: u32,
    /// SGIs that may be in list registers, if those (but the timer's) hold nothing else, each as it is in `sgis` and none
    /// active and pending; 0 if that is not known.
    pub(super) inside: u32,
    /// Words of SPIs in which [`super::shared::VcpuWords::holds`] is not zero.
    pub(super) held_words: u32,
    /// Active, but in no list register.
    pub(super) spilled: Words,
    /// Active because a register made them so: no end of the guest means them, unless it names them.
    pub(super) by_register: Words,
    /// GICv2: where the SGIs came from that are spilled.
    pub(super) spilled_from: [u8; 16],
    /// By word: how they nest.
    pub(super) nesting: [Nesting; WORDS],
    /// What waits for a list register, and the most urgent of each word, as found when the word was last looked
    /// at.
    pub(super) waiting: Words,
    pub(super) best: [u32; WORDS],
    /// Level-sensitive interrupts in list registers that are pending also without their line.
    pub(super) latched: Words,
    /// SPIs whose holders have been asked to say when they have ended, and the count of releases then.
    pub(super) asked: Words,
    pub(super) asked_at: u32,
    /// The interrupt that got a list register last: among equals, the next one after it is next.
    pub(super) last: u32,
    /// GICv2: the vCPU whose SGI was taken last.
    pub(super) last_source: u32,
    /// Hardware PPIs that are enabled on the board.
    pub(super) board: u32,
    /// What the virtual interface has been asked to tell.
    pub(super) maintenance: Maintenance,
    /// Groups that the guest's CPU interface signalled when that last mattered.
    pub(super) groups: u32,
    /// A register access that waits for answers.
    pub(super) query: Query,
}

impl Cpu {
    /// The vCPU `number` of its VM (0 to 7, which is its affinity too), off.
    pub const fn new(number: usize) -> Self {
        Self {
            vtimer_lr: 0,
            number: number % VCPUS,
            direct: 0,
            vtimer_wanted: 0,
            sgis: [0; 16],
            ready: [0; READY],
            ready_words: 0,
            inside: 0,
            held_words: 0,
            spilled: Words::new(),
            by_register: Words::new(),
            spilled_from: [0; 16],
            nesting: [Nesting::new(); WORDS],
            waiting: Words::new(),
            best: [u32::MAX; WORDS],
            latched: Words::new(),
            asked: Words::new(),
            asked_at: 0,
            last: 0,
            last_source: 0,
            board: 0,
            maintenance: Maintenance {
                refill: false,
                eoi: false,
            },
            groups: 0,
            query: Query::new(),
        }
    }

    /// As [`Self::new`] made it, in place.
    fn clear(&mut self) {
        let Self {
            vtimer_lr,
            number: _,
            direct,
            vtimer_wanted,
            sgis,
            ready,
            ready_words,
            inside,
            held_words,
            spilled,
            by_register,
            spilled_from,
            nesting,
            waiting,
            best,
            latched,
            asked,
            asked_at,
            last,
            last_source,
            board,
            maintenance,
            groups,
            query,
        } = self;
        *sgis = [0; 16];
        *ready = [0; READY];
        *spilled_from = [0; 16];
        for nesting in nesting {
            nesting.clear();
        }
        *best = [u32::MAX; WORDS];
        for words in [spilled, by_register, waiting, latched, asked] {
            *words = Words::new();
        }
        for entry in [vtimer_lr, vtimer_wanted] {
            *entry = 0;
        }
        for number in [
            asked_at,
            direct,
            ready_words,
            inside,
            held_words,
            last,
            last_source,
            board,
            groups,
        ] {
            *number = 0;
        }
        *maintenance = Maintenance::default();
        *query = Query::new();
    }

    /// The vCPU starts (VM start, CPU_ON): list registers empty, private interrupts as after a reset. SPIs
    /// that wait for this vCPU are taken up at once.
    pub fn reset(&mut self, dist: &Distributor, host: &mut impl Host) -> Notify {
        self.clear();
        for n in 0..host.list_registers() {
            host.set_lr(n, 0);
        }
        host.eoi_count();
        host.ask(Maintenance::default());
        let (hw, edges) = dist.ppis();
        dist.vcpu_words(self.number).reset(hw, 0xffff | edges);
        dist.set_online(self.number, true);
        // Private requests there are none yet.
        self.sync_lrs(dist, host, ALL & !1 | REQUESTS)
    }

    /// The vCPU goes off, or its VM stops: SPIs that were pending in list registers wait for whoever they are
    /// routed to, what was active has ended, its physical interrupts are deactivated, its private ones
    /// disabled, and its private state is dropped.
    pub fn leave<H: Host>(&mut self, dist: &Distributor, host: &mut H) -> Notify {
        dist.set_online(self.number, false);
        let mut notify = Notify::NOBODY;
        for n in super::each(0, !host.empty() & Self::all_lrs(host)) {
            let entry = host.lr(n);
            host.set_lr(n, 0);
            if lr::vintid(entry) >= 32 && entry & lr::PENDING != 0 {
                self.requeue_pending(dist, host, entry);
            }
            if entry & (lr::HW | lr::ACTIVE) == lr::HW | lr::ACTIVE {
                host.deactivate(lr::pintid(entry));
            }
        }
        for word in 0..WORDS {
            let spilled = self.spilled.get(word);
            if spilled != 0 {
                self.end_spilled(dist, host, word, spilled);
            }
            if word != 0 {
                notify |= self.release(dist, word, 0);
            }
        }
        let shared = dist.vcpu_words(self.number);
        for intid in super::each(0, shared.bank.hw.load(Relaxed)) {
            let pintid = dist.physical(intid);
            host.disable(pintid);
            host.set_pending(pintid, false);
            host.deactivate(pintid);
        }
        shared.reset(0, 0);
        host.eoi_count();
        host.ask(Maintenance::default());
        self.clear();
        notify
    }

    /// Private interrupts (virtual INTIDs, a bit for each) whose physical ones the guest has enabled.
    pub const fn enabled_on_board(&self) -> u32 {
        self.board
    }

    /// An interrupt of one of `groups`, more urgent than `below`, waits for the guest: its WFI ends.
    pub fn is_called<H: Host>(&self, host: &H, groups: u32, below: u64) -> bool {
        !self.waiting.is_empty()
            || super::each(0, !host.empty() & Self::all_lrs(host)).any(|n| {
                let entry = host.lr(n);
                let group = if entry & lr::GROUP1 != 0 { 2 } else { 1 };
                entry & lr::PENDING != 0
                    && groups & group != 0
                    && u64::from(lr::priority(entry)) < below
            })
    }

    /// What EL2 writes into [`VTIMER_LR`] when the virtual timer fires, or 0: the guest does not want it
    /// now; then [`Self::raise`].
    #[inline(always)]
    pub const fn vtimer_entry(&self) -> u64 {
        self.vtimer_lr
    }

    /// Takes up what others have left for this vCPU. To be called when it has been notified, and when it goes
    /// on after a while in which notifications were not acted on (a paused VM).
    #[inline(always)]
    pub fn on_notify<H: Host>(&mut self, dist: &Distributor, host: &mut H) -> Notify {
        if self.on_notify_fast(dist, host) {
            Notify::NOBODY
        } else {
            self.on_notify_slow(dist, host)
        }
    }

    /// The fast path of [`Self::on_notify`]: exactly one SGI that may go straight into an empty list register, and
    /// nothing else. `false`: nothing has been done, take [`Self::on_notify`].
    #[inline(always)]
    pub fn on_notify_fast<H: Host>(&mut self, dist: &Distributor, host: &mut H) -> bool {
        let shared = dist.vcpu_words(self.number);
        let busy = shared.busy.load(Acquire);
        let latch = shared.bank.latch.load(Acquire) & self.direct;
        let intid = latch.trailing_zeros() as usize;
        if (busy | latch & latch.wrapping_sub(1)) == 0
            && let Some(entry) = self.sgis.get(intid)
            && !host.empty() & host.usable() == 0
        {
            if shared.bank.latch.fetch_and(!latch, AcqRel) & latch == 0 {
                return true;
            }
            self.inside = latch;
            if matches!(H::VERSION, Version::V3) {
                host.set_lr(1, *entry);
                return true;
            }
            let sources = shared.sources[intid & 15].swap(0, AcqRel);
            if sources.is_power_of_two() {
                host.set_lr(1, *entry | lr::from(sources.trailing_zeros()));
                return true;
            }
            shared.sources[intid & 15].fetch_or(sources, AcqRel);
            shared.bank.latch.fetch_or(latch, AcqRel);
        }
        false
    }

    /// SGIs where list registers are in use, or everything.
    #[inline(never)]
    fn on_notify_slow<H: Host>(&mut self, dist: &Distributor, host: &mut H) -> Notify {
        if self.take_sgis(dist, host) {
            Notify::NOBODY
        } else {
            self.sync_lrs(dist, host, 0)
        }
    }

    /// The fast path of [`Self::raise`] for an SPI, by its physical INTID: it is wanted here, and the first list
    /// register is free. `false`: nothing has been done, look up the virtual INTID and take [`Self::raise`].
    #[inline(always)]
    pub fn raise_fast<H: Host>(&mut self, dist: &Distributor, host: &mut H, pintid: u32) -> bool {
        if pintid < 32 {
            return false;
        }
        let entry = self.ready[pintid as usize % READY];
        let busy = dist.vcpu_words(self.number).busy.load(Acquire) != 0;
        // An entry that is not there names physical interrupt 0, an SGI of EL2's own.
        if lr::pintid(entry) != pintid || busy || !self.waiting.is_empty() || host.empty() & 2 == 0
        {
            return false;
        }
        let (word, bit) = place(lr::vintid(entry));
        self.hold(dist, word, bit);
        self.inside = 0;
        host.set_lr(1, entry);
        true
    }

    /// A hardware interrupt (virtual INTID) has been acknowledged on this pCPU and its priority dropped. It stays
    /// active on the board until the guest deactivates it.
    pub fn raise<H: Host>(&mut self, dist: &Distributor, host: &mut H, intid: u32) -> Notify {
        let (word, bit) = place(intid);
        if word >= dist.words() {
            return Notify::NOBODY;
        }
        let bank = dist.bank(self.number, word);
        let free = host.empty() & host.usable();
        let entry = self.ready[dist.physical(intid) as usize % READY];
        if lr::vintid(entry) == intid && free != 0 && self.waiting.is_empty() && self.is_quiet(dist)
        {
            self.hold(dist, word, bit);
            self.inside = 0;
            host.set_lr(free.trailing_zeros(), entry);
            return Notify::NOBODY;
        }
        bank.latch.fetch_or(bit, SeqCst);
        if dist.owns(self.number, word) & bit == 0 {
            return dist.mark_owners(self.number, word, bit);
        }
        let notify = self.sync_lrs(dist, host, mask(word));
        if intid == VTIMER {
            self.direct_changed(dist);
        }
        // What is pending by a register is told apart on this path only.
        let plain = bank.hw.load(Relaxed) & !self.latched.get(word);
        if word != 0 && bank.deliverable(dist.groups()) & plain & bit != 0 {
            let slot = dist.physical(intid) as usize % READY;
            self.ready[slot] = self.entry(dist, intid) | lr::PENDING;
            self.ready_words |= mask(word);
        }
        notify
    }

    /// The line of an emulated device goes up or down, seen by this pCPU.
    pub fn set_line<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        intid: u32,
        up: bool,
    ) -> Notify {
        let (word, bit) = place(intid);
        if !dist.move_line(intid, up, self.number) {
            return Notify::NOBODY;
        }
        if self.follow_line(dist, host, intid, up) {
            return Notify::NOBODY;
        }
        self.changed(dist, host, self.number, word, bit)
    }

    /// Maintenance interrupt.
    pub fn handle_maintenance<H: Host>(&mut self, dist: &Distributor, host: &mut H) -> Notify {
        let mut notify = Notify::NOBODY;
        if self.handle_maintenance_fast(dist, host, &mut notify) {
            return notify;
        }
        notify | self.sync_lrs(dist, host, 0)
    }

    /// A write to ICC_DIR_EL1 or GICC_DIR in EOImode 1. Such writes always trap.
    pub fn deactivate<H: Host>(&mut self, dist: &Distributor, host: &mut H, value: u32) -> Notify {
        let intid = if matches!(H::VERSION, Version::V2) {
            value & 0x3ff
        } else {
            value & 0xff_ffff
        };
        let (word, bit) = place(intid);
        if word >= dist.words() {
            return Notify::NOBODY;
        }
        self.end_active(dist, host, self.number, word, bit)
    }

    /// Bits of `word`, as `vcpu` sees it, have changed in a way that may make them wanted or unwanted: this vCPU
    /// sees to its own and marks the others.
    pub(super) fn changed<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        vcpu: usize,
        word: usize,
        bits: u32,
    ) -> Notify {
        let mut notify = Notify::NOBODY;
        let mut mine = false;
        for v in 0..dist.vcpus() {
            let its = if word == 0 {
                v == vcpu
            } else {
                (dist.owns(v, word) | dist.vcpu_words(v).holds.get(word)) & bits != 0
            };
            if its && v == self.number {
                mine = true;
            } else if its {
                notify |= dist.mark(v, mask(word));
            }
        }
        if mine {
            notify |= self.sync_lrs(dist, host, mask(word));
        }
        notify
    }

    /// Works out anew what the hot paths know beforehand.
    pub(super) fn hot_changed(&mut self, dist: &Distributor) {
        let wanted = dist.vcpu_words(self.number).bank.deliverable(dist.groups());
        self.vtimer_wanted = if wanted & 1 << VTIMER == 0 {
            0
        } else {
            self.entry(dist, VTIMER) | lr::PENDING
        };
        for intid in 0..16u32 {
            self.sgis[intid as usize & 15] = self.entry(dist, intid) | lr::PENDING;
        }
        self.direct_changed(dist);
    }

    /// SGIs that may go straight into a list register.
    pub(super) const fn direct(&self) -> u32 {
        self.direct
    }

    /// What goes into a list register for an SGI.
    pub(super) const fn sgi_entry(&self, intid: u32) -> u64 {
        self.sgis[intid as usize & 15]
    }

    /// Something waits: nothing may overtake it.
    pub(super) const fn hold_back(&mut self) {
        self.direct = 0;
        self.vtimer_lr = 0;
    }

    /// Works out anew what may go straight into a list register.
    pub(super) fn direct_changed(&mut self, dist: &Distributor) {
        if !self.waiting.is_empty() {
            return self.hold_back();
        }
        let wanted = dist.vcpu_words(self.number).bank.deliverable(dist.groups());
        self.direct = wanted & 0xffff & !self.spilled.get(0);
        let soft = self.latched.get(0) | dist.by_software(self.number, 0).load(Relaxed);
        self.vtimer_lr = if soft & 1 << VTIMER == 0 {
            self.vtimer_wanted
        } else {
            0
        };
    }

    /// Forgets the entries that are kept ready for SPIs of these words.
    pub(super) fn forget_ready(&mut self, words: u32) {
        if self.ready_words & words == 0 {
            return;
        }
        for entry in &mut self.ready {
            let (word, _) = place(lr::vintid(*entry));
            if words >> (word & 31) & 1 != 0 {
                *entry = 0;
            }
        }
        self.ready_words &= !words;
    }

    /// A list register entry for an interrupt, without state.
    pub(super) fn entry(&self, dist: &Distributor, intid: u32) -> u64 {
        let (word, bit) = place(intid);
        let bank = dist.bank(self.number, word);
        let group1 = bank.group.load(Relaxed) & bit != 0;
        let entry = lr::entry(intid, dist.priority(self.number, intid), group1);
        if bank.hw.load(Relaxed) & bit != 0 {
            entry | lr::hw(dist.physical(intid))
        } else if bank.edge.load(Relaxed) & bit == 0 {
            // A line of an emulated device that stays up must be taken again: ask to be told.
            entry | lr::EOI
        } else {
            entry
        }
    }

    /// Says that SPIs may be in a list register here, or are kept active here.
    #[inline(always)]
    pub(super) fn hold(&mut self, dist: &Distributor, word: usize, bits: u32) {
        let holds = &dist.vcpu_words(self.number).holds;
        holds.set(word, holds.get(word) | bits);
        self.held_words |= mask(word);
    }

    /// All list registers.
    #[inline(always)]
    pub(super) fn all_lrs(host: &impl Host) -> u32 {
        host.usable() | 1 << VTIMER_LR
    }
}
