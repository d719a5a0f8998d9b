//! The interrupt state that the vCPUs of a VM share.

use core::sync::atomic::{
    AtomicU16, AtomicU32,
    Ordering::{Acquire, Relaxed, SeqCst},
    fence,
};

use super::priorities::Priorities;
use super::shared::{ALL, ASKED, Bank, CONFIG, VcpuWords};
use super::words::SharedWords;
use super::{Host, INTIDS, Notify, VCPUS, VTIMER, Version, WORDS, each, mask, place};

/// `GICD_CTLR.EnableGrp0` and `EnableGrp1`.
const CTLR_GROUPS: u32 = 0b11;

/// The distributor of a VM: atomic words, 5.25 KiB. All zero is a valid value, that of a VM that has
/// not been set up.
#[derive(Debug)]
#[repr(C)]
pub struct Distributor {
    groups: AtomicU32,
    typer: AtomicU32,
    /// The number of words of INTIDs that the VM has, word 0 for SGIs and PPIs included.
    words: AtomicU32,
    vcpus: AtomicU32,
    /// A bit for each vCPU that is on.
    online: AtomicU32,
    /// A bit for each vCPU that a write that disables has ever asked for an answer.
    disabled: AtomicU32,
    /// Number of times that a vCPU has released SPIs. When it has changed, a vCPU that waits for an
    /// SPI asks the current holder again.
    pub(super) releases: AtomicU32,
    /// 1 for a GICv2, else 0.
    is_v2: AtomicU32,
    /// The hardware PPIs, and those of them that are edge-triggered.
    ppis: AtomicU32,
    ppi_edges: AtomicU32,
    /// The state of SPIs by word. Word 0 stays zero: SGIs and PPIs are in `vcpu_words`.
    spis: [Bank; WORDS],
    /// Hardware SPIs, by word, that a register write has made pending, in the physical GIC or in
    /// the latch. A level-sensitive one stays pending when its line falls.
    by_software: SharedWords,
    vcpu_words: [VcpuWords; VCPUS],
    /// The priorities of SPIs by word; those of SGIs and PPIs are in `vcpu_words`.
    priority: [Priorities; WORDS],
    /// The routes of SPIs: the affinity as in `GICR_TYPER`\[63:32\], or on a GICv2 a mask of vCPUs.
    routes: [AtomicU32; INTIDS - 32],
    /// The physical INTIDs behind hardware interrupts.
    physical: [AtomicU16; INTIDS],
}

impl Default for Distributor {
    fn default() -> Self {
        Self::new()
    }
}

impl Distributor {
    /// Creates the distributor of a VM that has not been set up; [`Self::reset`] sets it up.
    pub const fn new() -> Self {
        Self {
            groups: AtomicU32::new(0),
            typer: AtomicU32::new(0),
            words: AtomicU32::new(0),
            vcpus: AtomicU32::new(0),
            online: AtomicU32::new(0),
            disabled: AtomicU32::new(0),
            releases: AtomicU32::new(0),
            is_v2: AtomicU32::new(0),
            ppis: AtomicU32::new(0),
            ppi_edges: AtomicU32::new(0),
            spis: [const { Bank::new() }; WORDS],
            by_software: SharedWords::new(),
            vcpu_words: [const { VcpuWords::new() }; VCPUS],
            priority: [const { Priorities::new() }; WORDS],
            routes: [const { AtomicU32::new(0) }; INTIDS - 32],
            physical: [const { AtomicU16::new(0) }; INTIDS],
        }
    }

    /// Resets the distributor for a VM of `vcpus` (1 to 8) vCPUs, all off, with `spis` SPIs (a
    /// multiple of 32, at most 256) and its virtual timer on the board's PPI `vtimer`. To be called
    /// only while none of the VM's vCPUs runs.
    pub fn reset(&self, version: Version, vcpus: usize, spis: u32, vtimer: u32) {
        self.reset_shared(version, vcpus, spis, vtimer);
        for word in 0..self.words() {
            self.reset_word(word);
        }
        for number in 0..vcpus {
            self.reset_private(number);
        }
    }

    /// The first part of [`Self::reset`]: the registers and sizes of the VM. Then come
    /// [`Self::reset_word`] for each of [`Self::words`] and [`Self::reset_private`] for each vCPU,
    /// each a step of at most some hundred instructions.
    pub fn reset_shared(&self, version: Version, vcpus: usize, spis: u32, vtimer: u32) {
        let lines = (spis / 32).min(WORDS as u32 - 1);
        let vcpus = vcpus.clamp(1, VCPUS) as u32;
        let is_v2 = matches!(version, Version::V2);
        self.words.store(lines.wrapping_add(1), Relaxed);
        self.vcpus.store(vcpus, Relaxed);
        self.is_v2.store(u32::from(is_v2), Relaxed);
        self.typer.store(
            if is_v2 {
                // ITLinesNumber, CPUNumber.
                lines | vcpus.wrapping_sub(1) << 5
            } else {
                // ITLinesNumber; IDbits = 9 (10-bit INTIDs); A3V; No1N: 1-of-N is not offered.
                lines | 9 << 19 | 1 << 24 | 1 << 25
            },
            Relaxed,
        );
        self.groups.store(0, Relaxed);
        self.online.store(0, Relaxed);
        self.disabled.store(0, Relaxed);
        self.by_software.fill(0);
        let private = self.physical.iter().take(32);
        private.for_each(|p| p.store(0, Relaxed));
        self.ppis.store(1 << VTIMER, Relaxed);
        self.ppi_edges.store(0, Relaxed);
        if let Some(entry) = self.physical.get(VTIMER as usize) {
            entry.store(vtimer as u16, Relaxed);
        }
    }

    /// The part of [`Self::reset`] for the 32 SPIs of a word (1 and up), after
    /// [`Self::reset_shared`].
    pub fn reset_word(&self, word: usize) {
        let (Some(bank), Some(priorities)) = (self.spis.get(word), self.priority.get(word)) else {
            return;
        };
        bank.reset(0, 0);
        priorities.reset();
        let Some(first) = word.checked_mul(32).filter(|_| word > 0) else {
            return;
        };
        let routes = self.routes.iter().skip(first.wrapping_sub(32)).take(32);
        routes.for_each(|r| r.store(0, Relaxed));
        let physical = self.physical.iter().skip(first).take(32);
        physical.for_each(|p| p.store(0, Relaxed));
    }

    /// The part of [`Self::reset`] for vCPU `number`, after [`Self::reset_shared`].
    pub fn reset_private(&self, number: usize) {
        let shared = self.vcpu_words(number);
        shared.reset(0, 0);
        shared.busy.store(0, Relaxed);
        shared.owns.fill(0);
        // A route of 0 means vCPU 0, except on a GICv2 with several vCPUs, where it means none.
        if number == 0 && self.target(0) == Some(0) {
            for word in 1..self.words() {
                shared.owns.set(word, u32::MAX);
            }
        }
    }

    /// Backs an SPI of the VM by a physical SPI, or a PPI of every vCPU by the PPI of its pCPU. To
    /// be called after [`Self::reset`], before the VM runs.
    pub fn link(&self, vintid: u32, pintid: u32, edge: bool) {
        let (word, bit) = place(vintid);
        let Some(entry) = self.physical.get(vintid as usize) else {
            return;
        };
        entry.store(pintid as u16, Relaxed);
        let edges = if edge { bit } else { 0 };
        if word == 0 {
            self.ppis.fetch_or(bit, Relaxed);
            self.ppi_edges.fetch_or(edges, Relaxed);
        } else {
            let bank = self.bank(0, word);
            bank.hw.fetch_or(bit, Relaxed);
            bank.edge.fetch_or(edges, Relaxed);
        }
    }

    /// Reads the 32-bit registers that guests read most; `None` for all others.
    #[inline(always)]
    pub fn read_fast(&self, offset: u64) -> Option<u32> {
        if offset & !0x7c == 0x100 {
            if offset == 0x100 {
                return None;
            }
            let bank = self.spis.get((offset & 0x7c) as usize / 4)?;
            return Some(bank.enable.load(Relaxed));
        }
        (offset == 4).then(|| self.typer.load(Relaxed))
    }

    /// Whether other pCPUs have left something for this vCPU, so that it has to be notified.
    pub fn calls(&self, vcpu: usize) -> bool {
        let shared = self.vcpu_words(vcpu);
        let waits = shared.busy.load(SeqCst) | shared.bank.latch.load(SeqCst) & 0xffff;
        waits != 0 && self.online() & 1u32.wrapping_shl(vcpu as u32) != 0
    }

    /// Returns all vCPUs that are on.
    pub fn notify_all(&self) -> Notify {
        Notify(self.online() as u8)
    }

    /// Makes an interrupt pending, from any pCPU (an event, a doorbell). `vcpu` is the vCPU that
    /// has the interrupt if it is a PPI.
    #[inline(never)]
    pub fn post(&self, intid: u32, vcpu: usize) -> Notify {
        let (word, bit) = place(intid);
        let bank = self.bank(vcpu, word);
        if word >= self.words() || bank.hw.load(Relaxed) & bit != 0 {
            return Notify::NOBODY;
        }
        if bank.latch.fetch_or(bit, SeqCst) & bit != 0 {
            // The pCPU that has set the bit notifies the owner.
            return Notify::NOBODY;
        }
        if word == 0 {
            return self.mark(vcpu, 1);
        }
        self.mark_owners_of_spis(word, bit)
    }

    /// Raises or lowers the line of an emulated device, from any pCPU. `vcpu` is the vCPU that has
    /// the interrupt if it is a PPI.
    pub fn post_line(&self, intid: u32, up: bool, vcpu: usize) -> Notify {
        let (word, bit) = place(intid);
        if self.move_line(intid, up, vcpu) {
            self.mark_owners(vcpu, word, bit)
        } else {
            Notify::NOBODY
        }
    }

    /// Whether the VM has the interrupt, and no physical interrupt backs it.
    fn is_virtual(&self, vcpu: usize, word: usize, bit: u32) -> bool {
        word < self.words() && self.bank(vcpu, word).hw.load(Relaxed) & bit == 0
    }

    /// Stores the level of a line; returns whether it has changed.
    pub(super) fn move_line(&self, intid: u32, up: bool, vcpu: usize) -> bool {
        let (word, bit) = place(intid);
        if !self.is_virtual(vcpu, word, bit) {
            return false;
        }
        let bank = self.bank(vcpu, word);
        let before = if up {
            bank.level.fetch_or(bit, SeqCst)
        } else {
            bank.level.fetch_and(!bit, SeqCst)
        };
        let changed = (before & bit != 0) != up;
        if changed && up && bank.edge.load(Relaxed) & bit != 0 {
            bank.latch.fetch_or(bit, SeqCst);
        }
        changed
    }

    /// Disables, un-pends and deactivates all physical SPIs of the VM.
    pub(super) fn shutdown(&self, host: &mut impl Host) {
        for word in 1..self.words() {
            for intid in each(word, self.bank(0, word).hw.load(Relaxed)) {
                let pintid = self.physical(intid);
                host.disable(pintid);
                host.set_pending(pintid, false);
                host.deactivate(pintid);
            }
        }
    }

    /// Returns the number of words of INTIDs that the VM has, 1 to 9.
    #[inline(always)]
    pub fn words(&self) -> usize {
        (self.words.load(Relaxed) as usize).min(WORDS)
    }

    pub(super) fn is_v2(&self) -> bool {
        self.is_v2.load(Relaxed) != 0
    }

    pub(super) fn vcpus(&self) -> usize {
        (self.vcpus.load(Relaxed) as usize).min(VCPUS)
    }

    /// Returns a bit for each vCPU of the VM.
    pub(super) fn all_vcpus(&self) -> u32 {
        (1u32 << self.vcpus()).wrapping_sub(1)
    }

    #[inline(always)]
    pub(super) fn online(&self) -> u32 {
        self.online.load(SeqCst)
    }

    pub(super) fn is_online(&self, vcpu: usize) -> bool {
        self.online() & mask(vcpu % VCPUS) != 0
    }

    pub(super) fn set_online(&self, vcpu: usize, on: bool) {
        let bit = mask(vcpu % VCPUS);
        if on {
            self.online.fetch_or(bit, SeqCst);
        } else {
            self.online.fetch_and(!bit, SeqCst);
        }
    }

    pub(super) fn typer(&self) -> u32 {
        self.typer.load(Relaxed)
    }

    /// Returns the group enables of `GICD_CTLR`: bit 0 for group 0, bit 1 for group 1.
    #[inline(always)]
    pub(super) fn groups(&self) -> u32 {
        self.groups.load(Relaxed)
    }

    /// Writes the group enables; returns those before.
    pub(super) fn set_groups(&self, value: u32) -> u32 {
        self.groups.swap(value & CTLR_GROUPS, SeqCst)
    }

    #[inline(always)]
    pub(super) fn vcpu_words(&self, vcpu: usize) -> &VcpuWords {
        &self.vcpu_words[vcpu % VCPUS]
    }

    /// Returns the bank of a word of SPIs, if there is one with this number.
    #[inline(always)]
    pub(super) fn spis(&self, word: usize) -> Option<&Bank> {
        self.spis.get(word).filter(|_| word != 0)
    }

    /// Returns the bank of a word as this vCPU sees it. Word 0 of `spis` stands in for words that
    /// do not exist.
    #[inline(always)]
    pub(super) fn bank(&self, vcpu: usize, word: usize) -> &Bank {
        if word == 0 {
            &self.vcpu_words(vcpu).bank
        } else {
            self.spis.get(word).unwrap_or(&self.spis[0])
        }
    }

    /// Returns the interrupts of a word that are routed to this vCPU; all ones for its SGIs and
    /// PPIs.
    #[inline(always)]
    pub(super) fn owns(&self, vcpu: usize, word: usize) -> u32 {
        if word == 0 {
            u32::MAX
        } else {
            self.vcpu_words(vcpu).owns.get(word)
        }
    }

    /// Returns the hardware PPIs, and those of them that are edge-triggered.
    pub(super) fn ppis(&self) -> (u32, u32) {
        (self.ppis.load(Relaxed), self.ppi_edges.load(Relaxed))
    }

    /// Returns the word of hardware interrupts that a register write has made pending and that are
    /// in no list register: they are pending in the physical GIC or in the latch.
    #[inline(always)]
    pub(super) fn by_software(&self, vcpu: usize, word: usize) -> &AtomicU32 {
        if word == 0 {
            &self.vcpu_words(vcpu).by_software
        } else {
            self.by_software.at(word)
        }
    }

    /// Returns the physical INTID behind a hardware interrupt; 0 if there is none.
    pub fn physical(&self, intid: u32) -> u32 {
        self.physical
            .get(intid as usize)
            .map_or(0, |p| u32::from(p.load(Relaxed)))
    }

    /// Returns the priorities of a word.
    #[inline(always)]
    pub(super) fn priorities(&self, vcpu: usize, word: usize) -> &Priorities {
        if word == 0 {
            &self.vcpu_words(vcpu).priority
        } else {
            self.priority.get(word).unwrap_or(&self.priority[0])
        }
    }

    #[inline(always)]
    pub(super) fn priority(&self, vcpu: usize, intid: u32) -> u8 {
        let (word, _) = place(intid);
        self.priorities(vcpu, word).get(intid % 32)
    }

    /// Returns the route of an SPI, as written.
    pub(super) fn route(&self, intid: u32) -> u32 {
        self.routes
            .get(intid.wrapping_sub(32) as usize)
            .map_or(0, |route| route.load(SeqCst))
    }

    /// Returns the vCPU that a route means: on a GICv2 the lowest one in the mask.
    pub(super) fn target(&self, route: u32) -> Option<usize> {
        if self.is_v2() {
            if self.vcpus() == 1 {
                return Some(0);
            }
            let mask = route & self.all_vcpus();
            return (mask != 0).then(|| mask.trailing_zeros() as usize);
        }
        Some(route as usize).filter(|vcpu| *vcpu < self.vcpus())
    }

    /// Returns the vCPU that an SPI is routed to.
    pub(super) fn owner(&self, intid: u32) -> Option<usize> {
        self.target(self.route(intid))
    }

    /// Routes an SPI; returns the owners before and after, if they differ. Two vCPUs may route it
    /// at the same time: in the end the ownership words match the route that was stored last.
    pub(super) fn set_route(
        &self,
        intid: u32,
        route: u32,
    ) -> Option<(Option<usize>, Option<usize>)> {
        let kept = self.routes.get(intid.wrapping_sub(32) as usize)?;
        let before = self.target(kept.swap(route, SeqCst));
        let after = self.target(route);
        if before == after {
            return None;
        }
        let (word, bit) = place(intid);
        let mut target = after;
        for _ in 0..VCPUS {
            for (vcpu, shared) in self.vcpu_words.iter().enumerate() {
                if Some(vcpu) == target {
                    shared.owns.add(word, bit);
                } else {
                    shared.owns.remove(word, bit);
                }
            }
            let now = self.owner(intid);
            if now == target {
                break;
            }
            target = now;
        }
        // Whoever makes the interrupt pending now reads the new owner, or else the new owner, which
        // looks after this, sees it pending.
        fence(SeqCst);
        Some((before, target))
    }

    /// Sets the bits `what` in [`VcpuWords::busy`] of a vCPU, and returns it as to be notified. If
    /// the bits are set already, another pCPU notifies it.
    pub(super) fn mark(&self, vcpu: usize, what: u32) -> Notify {
        let before = self.vcpu_words(vcpu).busy.fetch_or(what, SeqCst);
        if before & what == what {
            return Notify::NOBODY;
        }
        Notify((mask(vcpu % VCPUS) & self.online()) as u8)
    }

    /// Marks each vCPU that owns one of these interrupts.
    pub(super) fn mark_owners(&self, vcpu: usize, word: usize, bits: u32) -> Notify {
        if word == 0 {
            return self.mark(vcpu, 1);
        }
        self.mark_owners_of_spis(word, bits)
    }

    #[inline(always)]
    fn mark_owners_of_spis(&self, word: usize, bits: u32) -> Notify {
        // The change before the owners are read: who routes the interrupt elsewhere writes `owns`,
        // executes a fence and looks for the change ([`Self::set_route`]).
        fence(SeqCst);
        let (mut notify, what) = (0, mask(word));
        let all = (0..self.vcpus()).zip(&self.vcpu_words);
        for (v, shared) in all {
            if shared.owns.at(word).load(Acquire) & bits != 0
                && shared.busy.fetch_or(what, SeqCst) & what == 0
            {
                notify |= mask(v);
            }
        }
        Notify((notify & self.online()) as u8)
    }

    /// Marks each vCPU except `but` that may hold one of these interrupts, so that it reports the
    /// end.
    pub(super) fn mark_holders(&self, but: usize, word: usize, bits: u32) -> Notify {
        let mut notify = Notify::NOBODY;
        for v in (0..self.vcpus()).filter(|v| *v != but) {
            if word != 0 && self.vcpu_words(v).holds.get(word) & bits != 0 {
                notify |= self.mark(v, mask(word));
            }
        }
        notify
    }

    /// Asks a vCPU to answer once it has acted on everything that is marked by now; returns the
    /// ticket.
    pub(super) fn ask(&self, vcpu: usize) -> (u32, Notify) {
        let ticket = self
            .vcpu_words(vcpu)
            .asked
            .fetch_add(1, SeqCst)
            .wrapping_add(1);
        (ticket, self.mark(vcpu, ASKED))
    }

    /// Asks a vCPU to answer a write that disables. The write is not in effect before the answer
    /// ([`Self::disabling`]).
    pub(super) fn ask_disabled(&self, vcpu: usize, what: u32) -> Notify {
        if !self.is_online(vcpu) {
            return Notify::NOBODY;
        }
        self.disabled
            .fetch_or(1u32.wrapping_shl(vcpu as u32), SeqCst);
        // Before the ticket: a vCPU that answers the ticket has seen the mark.
        let marked = self.mark(vcpu, what);
        let (ticket, notify) = self.ask(vcpu);
        self.vcpu_words(vcpu).disabling.fetch_max(ticket, SeqCst);
        marked | notify
    }

    /// Whether a write that disables is not yet in effect on this vCPU.
    #[inline(always)]
    pub(super) fn disabling_on(&self, vcpu: usize) -> bool {
        let shared = self.vcpu_words(vcpu);
        self.is_online(vcpu) && !shared.has_answered(shared.disabling.load(SeqCst))
    }

    /// Whether a write that disables is not yet in effect on some vCPU (`GICD_CTLR.RWP`).
    pub(super) fn disabling(&self) -> bool {
        let mut asked = self.disabled.load(SeqCst);
        while asked != 0 {
            if self.disabling_on(asked.trailing_zeros() as usize) {
                return true;
            }
            asked &= asked.wrapping_sub(1);
        }
        false
    }

    /// After a write that disabled `gone`: asks each vCPU except `but` that may have one of them in
    /// a list register.
    pub(super) fn ask_holders(&self, but: usize, word: usize, gone: u32) -> Notify {
        // A vCPU that takes an interrupt sets its bit in `holds` before it checks whether the
        // interrupt is enabled.
        fence(SeqCst);
        let mut notify = Notify::NOBODY;
        for v in (0..self.vcpus()).filter(|v| *v != but) {
            if self.vcpu_words(v).holds.get(word) & gone != 0 {
                notify |= self.ask_disabled(v, mask(word));
            }
        }
        notify
    }

    /// Marks each vCPU except `but` because the group enables have changed; if `off`, asks it for
    /// an answer.
    pub(super) fn mark_groups(&self, but: usize, off: bool) -> Notify {
        let mut notify = Notify::NOBODY;
        for v in (0..self.vcpus()).filter(|v| *v != but) {
            notify |= if off {
                self.ask_disabled(v, ALL | CONFIG)
            } else {
                self.mark(v, ALL | CONFIG)
            };
        }
        notify
    }
}
