//! The interrupt state of a vCPU that only its pCPU accesses, and the fast paths, for which
//! everything is precomputed. What they cannot handle goes to [`Cpu::sync_lrs`].

use core::sync::atomic::{
    Ordering::{AcqRel, Acquire, Relaxed, SeqCst},
    fence,
};

use super::query::Query;
use super::shared::{ALL, ARRIVAL, REQUESTS, VcpuWords};
use super::spill::Nesting;
use super::words::Words;
use super::{
    Distributor, Host, Maintenance, Notify, VCPUS, VTIMER, VTIMER_LR, Version, WORDS, lr, mask,
    place,
};

/// The number of hardware SPIs whose list register entry is kept ready, indexed by the low bits of
/// the physical INTID.
const READY: usize = 8;

/// The interrupt state of a vCPU that only its pCPU accesses.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Cpu {
    /// The entry that EL2 writes into [`VTIMER_LR`] when the virtual timer fires, with the group
    /// and priority that the guest has configured. 0 while the interrupt is not deliverable, while
    /// other interrupts wait for a list register, and while it is pending by software.
    vtimer_lr: u64,
    /// The number of the vCPU, below [`VCPUS`].
    pub(super) number: usize,
    /// The SGIs that may go straight into a list register: deliverable and not spilled, while
    /// nothing waits for a list register.
    pub(super) direct: u32,
    /// The entry for the virtual timer as in `vtimer_lr`, but regardless of other interrupts that
    /// wait and of pending state by software.
    vtimer_wanted: u64,
    /// The precomputed list register entry of each SGI.
    pub(super) sgis: [u64; 16],
    /// The precomputed list register entries of hardware SPIs; 0 where there is none.
    ready: [u64; READY],
    /// A bit for each word that may have an entry in `ready`.
    pub(super) ready_words: u32,
    /// SGIs that may be in list registers, if the list registers but the timer's hold nothing else,
    /// each as it is in `sgis` and none active and pending; 0 if that is not known.
    pub(super) inside: u32,
    /// A bit for each word of SPIs in which [`VcpuWords::holds`] is not zero.
    pub(super) held_words: u32,
    /// The spilled interrupts: active, but in no list register.
    pub(super) spilled: Words,
    /// Interrupts that a register write has made active. An end that EL2 knows only as a count
    /// (EOIcount) never belongs to one of them; an end that names the INTID does.
    pub(super) by_register: Words,
    /// GICv2: the vCPU that sent each spilled SGI.
    pub(super) spilled_from: [u8; 16],
    /// The order in which the spilled interrupts of each word nest.
    pub(super) nesting: [Nesting; WORDS],
    /// The interrupts that wait for a list register, as found at the last scan of each word.
    pub(super) waiting: Words,
    /// The most urgent waiting interrupt of each word: its urgency in the upper half, its INTID in
    /// the lower. Valid only for words in which an interrupt waits.
    pub(super) best: [u32; WORDS],
    /// Level-sensitive interrupts in list registers that stay pending even if their line falls.
    pub(super) latched: Words,
    /// SPIs whose holders have been asked to report the end, and the value of
    /// [`Distributor::releases`] at that time.
    pub(super) asked: Words,
    pub(super) asked_at: u32,
    /// The interrupt that got a list register last. Among equally urgent interrupts the next one
    /// after it is next.
    pub(super) last: u32,
    /// GICv2: the vCPU whose SGI was taken last.
    pub(super) last_source: u32,
    /// Hardware PPIs whose physical interrupts are enabled.
    pub(super) hw_enabled: u32,
    /// The maintenance interrupts that have been requested from the virtual interface.
    pub(super) maintenance: Maintenance,
    /// The groups that the guest's CPU interface signalled when list registers were last filled.
    pub(super) groups: u32,
    /// What the exit has done, in looks at an interrupt that waits: about 14 instructions each.
    pub(super) work: u32,
    /// A register access that waits for answers of other vCPUs.
    pub(super) query: Query,
}

impl Cpu {
    /// Creates the state of vCPU `number` of a VM (0 to 7, which is its affinity too). The vCPU is
    /// off.
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
            hw_enabled: 0,
            maintenance: Maintenance {
                refill: false,
                eoi: false,
            },
            groups: 0,
            work: 0,
            query: Query::new(),
        }
    }

    /// Gives a state that is new the number of its vCPU.
    pub const fn set_number(&mut self, number: usize) {
        self.number = number % VCPUS;
    }

    /// Resets the state in place to that of [`Self::new`].
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
            hw_enabled,
            maintenance,
            groups,
            work,
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
            hw_enabled,
            groups,
            work,
        ] {
            *number = 0;
        }
        *maintenance = Maintenance::default();
        *query = Query::new();
    }

    /// Starts the vCPU (VM start, CPU_ON): empties the list registers and resets the SGIs and PPIs.
    /// SPIs that wait for this vCPU are taken at once.
    pub fn reset(&mut self, dist: &Distributor, host: &mut impl Host) -> Notify {
        self.clear();
        for n in 0..host.list_registers() {
            host.set_lr(n, 0);
        }
        host.eoi_count();
        host.ask(Maintenance::default());
        let (hw, edges) = dist.ppis();
        dist.vcpu_words(self.number).reset(hw, 0xffff | edges);
        self.sgis_changed(dist);
        dist.set_online(self.number, true);
        // There are no requests about private interrupts yet.
        self.sync_lrs(dist, host, ALL & !1 | REQUESTS)
    }

    /// Takes the vCPU off line, or stops it with its VM. SPIs pending in its list registers wait
    /// for the vCPU that they are routed to. Its active interrupts have ended, and the physical
    /// interrupts behind them are deactivated. Its physical PPIs are disabled, and its private
    /// state is dropped.
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

    /// Returns the private interrupts (virtual INTIDs, a bit for each) whose physical interrupts
    /// the guest has enabled.
    pub const fn hw_enabled(&self) -> u32 {
        self.hw_enabled
    }

    /// Whether [`Self::is_called`] is to be asked: a list register is in use, or an interrupt waits for one.
    #[inline(always)]
    pub fn may_be_called<H: Host>(&self, host: &H) -> bool {
        !host.empty() & Self::all_lrs(host) != 0 || !self.waiting.is_empty()
    }

    /// Whether the guest's WFI ends: an interrupt waits for a list register, or an interrupt of one
    /// of `groups` that is more urgent than `below` is pending in one.
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

    /// Returns the entry that EL2 writes into [`VTIMER_LR`] when the virtual timer fires, or 0 if
    /// the interrupt cannot be delivered that way now; EL2 calls [`Self::raise`] then.
    #[inline(always)]
    pub const fn vtimer_entry(&self) -> u64 {
        self.vtimer_lr
    }

    /// Acts on what other pCPUs have left for this vCPU. To be called when the vCPU has been
    /// notified, and when it goes on after a while in which notifications were not acted on (a
    /// paused VM).
    #[inline(always)]
    pub fn on_notify<H: Host>(&mut self, dist: &Distributor, host: &mut H) -> Notify {
        if self.on_notify_fast(dist, host) {
            Notify::NOBODY
        } else {
            self.on_notify_slow(dist, host)
        }
    }

    /// The fast path of [`Self::on_notify`]: there is exactly one SGI to deliver and nothing else
    /// to do, and all list registers but the timer's are empty. Returns `false` if nothing has been
    /// done; the caller then calls [`Self::on_notify`].
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

    /// The rest of [`Self::on_notify`], where [`Self::on_notify_fast`] has done nothing: takes an edge, or SGIs while list registers are in
    /// use, or runs [`Self::sync_lrs`].
    #[inline(always)]
    pub fn on_notify_slow<H: Host>(&mut self, dist: &Distributor, host: &mut H) -> Notify {
        match self.take_edge(dist, host) {
            Some(notify) => notify,
            None => self.on_notify_all(dist, host),
        }
    }

    #[inline(never)]
    fn on_notify_all<H: Host>(&mut self, dist: &Distributor, host: &mut H) -> Notify {
        if self.take_sgis(dist, host) {
            return Notify::NOBODY;
        }
        self.sync_lrs(dist, host, 0)
    }

    /// The fast path of [`Self::raise`] for an SPI, by its physical INTID: it has a ready entry
    /// here, and list register 1 is free. Returns `false` if nothing has been done; the caller then
    /// looks up the virtual INTID and calls [`Self::raise`].
    #[inline(always)]
    pub fn raise_fast<H: Host>(&mut self, dist: &Distributor, host: &mut H, pintid: u32) -> bool {
        if pintid < 32 {
            return false;
        }
        let entry = self.ready[pintid as usize % READY];
        let words = dist.vcpu_words(self.number);
        let busy = words.busy.load(Acquire) != 0;
        // The physical INTID of an empty entry is 0, an SGI of EL2, which never gets here.
        if lr::pintid(entry) != pintid || busy || !self.waiting.is_empty() || host.empty() & 2 == 0
        {
            return false;
        }
        let (word, bit) = place(lr::vintid(entry));
        self.hold_among(words, word, bit);
        self.inside = 0;
        host.set_lr(1, entry);
        true
    }

    /// Delivers a hardware interrupt (virtual INTID) that this pCPU has acknowledged and whose
    /// priority it has dropped. The physical interrupt stays active until the guest deactivates it.
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
        let notify = self.sync_lrs(dist, host, mask(word) | ARRIVAL);
        if intid == VTIMER {
            self.direct_changed(dist);
        }
        // Only this path handles an interrupt that a register has made pending, so no entry is kept
        // ready for one.
        let plain = bank.hw.load(Relaxed) & !self.latched.get(word);
        if word != 0 && bank.deliverable(dist.groups()) & plain & bit != 0 {
            let index = dist.physical(intid) as usize % READY;
            self.ready[index] = self.entry(dist, intid) | lr::PENDING;
            self.ready_words |= mask(word);
        }
        notify
    }

    /// Raises or lowers the line of an emulated device, on this pCPU.
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

    /// Handles a maintenance interrupt.
    pub fn handle_maintenance<H: Host>(&mut self, dist: &Distributor, host: &mut H) -> Notify {
        let mut notify = Notify::NOBODY;
        if self.handle_maintenance_fast(dist, host, &mut notify) {
            return notify;
        }
        notify | self.sync_lrs(dist, host, 0)
    }

    /// Handles a write to ICC_DIR_EL1 or GICC_DIR in EOImode 1. Such writes always trap.
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

    /// Handles a change to `bits` of `word`, as `vcpu` sees it, that may make the interrupts
    /// deliverable or no longer deliverable: synchronizes the list registers of this vCPU, if it is
    /// concerned, and marks the other vCPUs.
    pub(super) fn changed<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        vcpu: usize,
        word: usize,
        bits: u32,
    ) -> Notify {
        // As in [`Distributor::mark_owners`].
        fence(SeqCst);
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

    /// Recomputes the entries of SGIs on the fast paths, after a change of priorities or groups.
    pub(super) fn sgis_changed(&mut self, dist: &Distributor) {
        for intid in 0..16u32 {
            self.sgis[intid as usize & 15] = self.entry(dist, intid) | lr::PENDING;
        }
    }

    /// Recomputes what may take the fast paths, and the entry of the virtual timer.
    pub(super) fn hot_changed(&mut self, dist: &Distributor) {
        let wanted = dist.vcpu_words(self.number).bank.deliverable(dist.groups());
        self.vtimer_wanted = if wanted & 1 << VTIMER == 0 {
            0
        } else {
            self.entry(dist, VTIMER) | lr::PENDING
        };
        self.direct_changed(dist);
    }

    /// Returns the SGIs that may go straight into a list register.
    pub(super) const fn direct(&self) -> u32 {
        self.direct
    }

    /// Returns the list register entry of an SGI.
    pub(super) const fn sgi_entry(&self, intid: u32) -> u64 {
        self.sgis[intid as usize & 15]
    }

    /// Stops the fast paths while an interrupt waits, so that none overtakes it.
    pub(super) const fn hold_back(&mut self) {
        self.direct = 0;
        self.vtimer_lr = 0;
    }

    /// Recomputes which SGIs may go straight into a list register, after a change to the enables of
    /// private interrupts that are not backed by hardware, among which the virtual timer is.
    #[inline(always)]
    pub(super) fn sgis_enabled(&mut self, dist: &Distributor) {
        if self.waiting.is_empty() {
            let wanted = dist.vcpu_words(self.number).bank.deliverable(dist.groups());
            self.direct = wanted & 0xffff & !self.spilled.get(0);
        }
    }

    /// Recomputes which interrupts may go straight into a list register.
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

    /// Forgets the ready entries of SPIs in these words.
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

    /// Returns the list register entry of an interrupt, without pending and active state.
    pub(super) fn entry(&self, dist: &Distributor, intid: u32) -> u64 {
        let (word, bit) = place(intid);
        let bank = dist.bank(self.number, word);
        let group1 = bank.group.load(Relaxed) & bit != 0;
        let entry = lr::entry(intid, dist.priority(self.number, intid), group1);
        if bank.hw.load(Relaxed) & bit != 0 {
            entry | lr::hw(dist.physical(intid))
        } else if bank.edge.load(Relaxed) & bit == 0 {
            // A line of an emulated device that stays up must be taken again after the guest has
            // ended the interrupt.
            entry | lr::EOI
        } else {
            entry
        }
    }

    /// Publishes that SPIs may be in a list register of this vCPU, or are spilled here.
    #[inline(always)]
    pub(super) fn hold(&mut self, dist: &Distributor, word: usize, bits: u32) {
        self.hold_among(dist.vcpu_words(self.number), word, bits);
    }

    /// [`Self::hold`] with the words of this vCPU at hand.
    #[inline(always)]
    fn hold_among(&mut self, words: &VcpuWords, word: usize, bits: u32) {
        words.holds.set(word, words.holds.get(word) | bits);
        self.held_words |= mask(word);
    }

    /// Returns a bit for each list register, that of the virtual timer included.
    #[inline(always)]
    pub(super) fn all_lrs(host: &impl Host) -> u32 {
        host.usable() | 1 << VTIMER_LR
    }
}
