//! The words that the pCPUs of a VM share: a [`Bank`] for each 32 INTIDs, a [`VcpuWords`] for each
//! vCPU.
//!
//! `docs/internals/locking.md` tells which pCPU writes which word, and why the memory orders
//! suffice.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use super::WORDS;
use super::priorities::Priorities;
use super::words::SharedWords;

/// The state of 32 interrupts, a bit for each.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Bank {
    /// Pending, and in no list register.
    pub(super) latch: AtomicU32,
    pub(super) enable: AtomicU32,
    /// Group 1; otherwise group 0.
    pub(super) group: AtomicU32,
    /// Edge-triggered; otherwise level-sensitive.
    pub(super) edge: AtomicU32,
    /// The line of the emulated device is up.
    pub(super) level: AtomicU32,
    /// Active, and in no list register.
    pub(super) active: AtomicU32,
    /// Backed by a physical interrupt. Constant while the VM runs.
    pub(super) hw: AtomicU32,
    /// SPIs that are not backed by hardware: a vCPU has the SPI in a list register or spilled. The
    /// vCPU whose read-modify-write sets the bit may take the interrupt, so no two vCPUs have it at
    /// a time.
    pub(super) held: AtomicU32,
}

impl Bank {
    pub(super) const fn new() -> Self {
        Self {
            latch: AtomicU32::new(0),
            enable: AtomicU32::new(0),
            group: AtomicU32::new(0),
            edge: AtomicU32::new(0),
            level: AtomicU32::new(0),
            active: AtomicU32::new(0),
            hw: AtomicU32::new(0),
            held: AtomicU32::new(0),
        }
    }

    /// Resets the bank: `hw` are backed by hardware, `edge` are edge-triggered.
    pub(super) fn reset(&self, hw: u32, edge: u32) {
        for word in [
            &self.latch,
            &self.enable,
            &self.group,
            &self.level,
            &self.active,
            &self.held,
        ] {
            word.store(0, Relaxed);
        }
        self.hw.store(hw, Relaxed);
        self.edge.store(edge, Relaxed);
    }

    /// Returns the level-sensitive interrupts whose line is up.
    #[inline(always)]
    pub(super) fn up(&self) -> u32 {
        self.level.load(Relaxed) & !self.edge.load(Relaxed)
    }

    /// Returns the interrupts that are enabled and in a group that `GICD_CTLR` enables (bit 0:
    /// group 0, bit 1: group 1).
    #[inline(always)]
    pub(super) fn deliverable(&self, groups: u32) -> u32 {
        self.enable.load(Relaxed) & of_groups(self.group.load(Relaxed), groups)
    }
}

/// Returns which of 32 interrupts are in one of `groups` (bit 0: group 0, bit 1: group 1).
#[inline(always)]
pub(super) const fn of_groups(group: u32, groups: u32) -> u32 {
    let group0 = if groups & 1 != 0 { !group } else { 0 };
    let group1 = if groups & 2 != 0 { group } else { 0 };
    group0 | group1
}

/// State that other pCPUs leave for a vCPU, and state that the vCPU publishes. The first 64 bytes
/// are all that an SGI needs.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct VcpuWords {
    /// The SGIs and PPIs of the vCPU.
    pub(super) bank: Bank,
    /// Work that waits for [`super::Cpu::on_notify`] besides plain SGIs: a bit for each word in
    /// which something has changed, [`REQUESTS`], [`CONFIG`] and [`ASKED`].
    pub(super) busy: AtomicU32,
    /// The last ticket drawn, and the last ticket that the vCPU has answered.
    pub(super) asked: AtomicU32,
    pub(super) answered: AtomicU32,
    /// The last ticket of a write that disables. The write is not in effect before the ticket is
    /// answered.
    pub(super) disabling: AtomicU32,
    /// GICv2: for each SGI, a bit for each vCPU from which it is pending.
    pub(super) sources: [AtomicU8; 16],
    /// The priorities of the SGIs and PPIs.
    pub(super) priority: Priorities,
    /// SPIs that are routed to this vCPU. Word 0 is not used.
    pub(super) owns: SharedWords,
    /// Interrupts that may be in a list register of this vCPU or are spilled there: perhaps too
    /// many, never too few. Word 0 is all ones. Only this vCPU writes it.
    pub(super) holds: SharedWords,
    /// The pending and active state that the vCPU found in its list registers when it last
    /// answered.
    pub(super) lr_pending: SharedWords,
    pub(super) lr_active: SharedWords,
    /// Requests to the vCPU about interrupts that it holds or owns.
    pub(super) clear_pending: SharedWords,
    pub(super) set_active: SharedWords,
    pub(super) clear_active: SharedWords,
    /// Hardware PPIs to be made pending in the physical GIC, which only this pCPU can do.
    pub(super) set_pending: AtomicU32,
    /// Hardware PPIs that a register write has made pending: [`super::Distributor::by_software`].
    pub(super) by_software: AtomicU32,
    /// The value of `GICR_WAKER`.
    pub(super) waker: AtomicU32,
}

/// A bit beside words in which nothing has changed but that an interrupt of a device has arrived: no bit of [`VcpuWords::busy`].
pub(super) const ARRIVAL: u32 = 1 << 28;
/// A bit of [`VcpuWords::busy`]: requests wait, or the vCPU may have become the owner of an active
/// interrupt.
pub(super) const REQUESTS: u32 = 1 << 29;
/// A bit of [`VcpuWords::busy`]: the configuration of SGIs or PPIs, or the group enables, have
/// changed.
pub(super) const CONFIG: u32 = 1 << 30;
/// A bit of [`VcpuWords::busy`]: another vCPU waits for an answer.
pub(super) const ASKED: u32 = 1 << 31;
/// The bits of [`VcpuWords::busy`] for all words of interrupts.
pub(super) const ALL: u32 = (1 << super::WORDS) - 1;

impl VcpuWords {
    pub(super) const fn new() -> Self {
        Self {
            bank: Bank::new(),
            busy: AtomicU32::new(0),
            asked: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            disabling: AtomicU32::new(0),
            sources: [const { AtomicU8::new(0) }; 16],
            priority: Priorities::new(),
            owns: SharedWords::new(),
            holds: SharedWords::new(),
            lr_pending: SharedWords::new(),
            lr_active: SharedWords::new(),
            clear_pending: SharedWords::new(),
            set_active: SharedWords::new(),
            clear_active: SharedWords::new(),
            set_pending: AtomicU32::new(0),
            by_software: AtomicU32::new(0),
            waker: AtomicU32::new(0),
        }
    }

    /// Resets the private part, as at a reset of the vCPU. Which SPIs the vCPU owns stays as it is.
    pub(super) fn reset(&self, hw: u32, edge: u32) {
        self.bank.reset(hw, edge);
        self.sources.iter().for_each(|s| s.store(0, Relaxed));
        self.priority.reset();
        for word in 0..WORDS {
            self.holds.set(word, 0);
            self.lr_pending.set(word, 0);
            self.lr_active.set(word, 0);
            self.clear_pending.set(word, 0);
            self.set_active.set(word, 0);
            self.clear_active.set(word, 0);
        }
        self.holds.set(0, u32::MAX);
        self.set_pending.store(0, Relaxed);
        self.by_software.store(0, Relaxed);
        // ProcessorSleep and ChildrenAsleep.
        self.waker.store(0b110, Relaxed);
        let asked = self.asked.load(Relaxed);
        self.answered.store(asked, Relaxed);
        self.disabling.store(asked, Relaxed);
    }

    /// Returns the bits of a word that a register access can neither read nor change without this
    /// vCPU.
    pub(super) fn concerns(&self, word: usize) -> u32 {
        self.clear_active.get(word) | self.clear_pending.get(word) | self.has_active(word)
    }

    /// Returns the bits of a word that this vCPU may have active, or is to make active.
    pub(super) fn has_active(&self, word: usize) -> u32 {
        // In this order: the vCPU sets a bit in `holds` before it takes the request.
        let coming = self.set_active.get(word);
        coming | self.holds.get(word)
    }

    /// Whether the vCPU has answered this ticket.
    pub(super) fn has_answered(&self, ticket: u32) -> bool {
        let behind = ticket.wrapping_sub(self.answered.load(core::sync::atomic::Ordering::Acquire));
        behind == 0 || behind > u32::MAX / 2
    }
}
