//! The interrupt state of one vCPU: its SGIs and PPIs, and what is pending or active of the SPIs that
//! target it. Only its pCPU touches it.

use core::sync::atomic::Ordering::Relaxed;

use super::{Distributor, Host, VTIMER, VTIMER_LR, WORDS, lr, place};

/// See the module.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Cpu {
    /// What EL2 writes into [`VTIMER_LR`] when the virtual timer fires: everything that the guest has
    /// configured for it. 0 while the guest does not want the interrupt.
    vtimer_lr: u64,
    /// Group 1 SGIs that go straight into a list register: enabled, group enabled, not held active.
    direct: u32,
    /// Which bits of ICC_SGI1R_EL1 say that this vCPU, and by list, is a target; and their values.
    sgi_mask: u64,
    sgi_self: u64,
    pub(super) pending: [u32; WORDS],
    pub(super) active: [u32; WORDS],
    pub(super) level: [u32; WORDS],
    pub(super) enable: u32,
    pub(super) group: u32,
    pub(super) edge: u32,
    pub(super) waker: u32,
    pub(super) priorities: [u8; 32],
    affinity: u32,
}

/// Interrupts of the set bits of a word, lowest first.
pub(super) fn each(word: usize, bits: u32) -> impl Iterator<Item = u32> {
    let mut rest = bits;
    core::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let bit = rest.trailing_zeros();
        rest &= rest.wrapping_sub(1);
        Some((word as u32).wrapping_mul(32).wrapping_add(bit))
    })
}

impl Cpu {
    /// The vCPU at reset. `affinity` as in GICR_TYPER\[63:32\].
    pub const fn new(affinity: u32) -> Self {
        Self {
            vtimer_lr: 0,
            direct: 0,
            sgi_mask: SGI_TARGETS | sgi_slot(affinity),
            sgi_self: sgi_route(affinity) | sgi_slot(affinity),
            pending: [0; WORDS],
            active: [0; WORDS],
            level: [0; WORDS],
            enable: 0,
            group: 0,
            edge: 0xffff,
            waker: 0b110,
            priorities: [0; 32],
            affinity,
        }
    }

    /// Affinity of the vCPU.
    pub(super) const fn affinity(&self) -> u32 {
        self.affinity
    }

    /// The list register entry for the virtual timer, or 0: the guest does not want it now.
    #[inline(always)]
    pub const fn vtimer_entry(&self) -> u64 {
        self.vtimer_lr
    }

    /// Priority of any interrupt.
    pub(super) fn priority(&self, dist: &Distributor, intid: u32) -> u8 {
        match self.priorities.get(intid as usize) {
            Some(priority) => *priority,
            None => dist.priority(intid),
        }
    }

    /// Enabled interrupts of a word whose group is enabled too.
    pub(super) fn wanted(&self, dist: &Distributor, word: usize) -> u32 {
        let (enable, group) = if word == 0 {
            (self.enable, self.group)
        } else {
            match (dist.enable.get(word), dist.group.get(word)) {
                (Some(enable), Some(group)) => (enable.load(Relaxed), group.load(Relaxed)),
                _ => (0, 0),
            }
        };
        let groups = dist.groups();
        let group0 = if groups & 1 != 0 { !group } else { 0 };
        let group1 = if groups & 2 != 0 { group } else { 0 };
        enable & (group0 | group1)
    }

    /// Works out anew what the hot paths know beforehand: the virtual timer's interrupt, and the SGIs that
    /// need no second look.
    pub(super) fn hot_changed(&mut self, dist: &Distributor) {
        self.vtimer_lr = if self.wanted(dist, 0) & 1 << VTIMER == 0 {
            0
        } else {
            self.entry(dist, VTIMER) | lr::PENDING
        };
        let held = self.active.first().copied().unwrap_or(0);
        self.direct = self.wanted(dist, 0) & self.group & !held & 0xffff;
    }

    /// The physical interrupt behind a virtual one.
    pub(super) fn physical(&self, dist: &Distributor, intid: u32) -> Option<u32> {
        if intid == VTIMER {
            Some(dist.vtimer())
        } else {
            dist.physical(intid)
        }
    }

    /// A list register entry for an interrupt, without state.
    fn entry(&self, dist: &Distributor, intid: u32) -> u64 {
        let (word, bit) = place(intid);
        let group1 = if word == 0 {
            self.group & bit != 0
        } else {
            dist.group
                .get(word)
                .is_some_and(|group| group.load(Relaxed) & bit != 0)
        };
        let entry = lr::entry(intid, self.priority(dist, intid), group1);
        if let Some(pintid) = self.physical(dist, intid) {
            return entry | lr::link(pintid);
        }
        // A line of an emulated device that stays high must be taken again: ask to be told.
        if self.is_level(dist, intid) {
            entry | lr::EOI
        } else {
            entry
        }
    }

    pub(super) fn is_level(&self, dist: &Distributor, intid: u32) -> bool {
        let (word, bit) = place(intid);
        let edge = if word == 0 {
            self.edge
        } else {
            dist.edge.get(word).map_or(0, |edge| edge.load(Relaxed))
        };
        edge & bit == 0
    }

    /// The list register that holds an interrupt.
    pub(super) fn find(&self, host: &impl Host, intid: u32) -> Option<(u32, u64)> {
        let all = lr_mask(host) | 1 << VTIMER_LR;
        each(0, !host.empty() & all)
            .map(|n| (n, host.lr(n)))
            .find(|(_, lr)| lr::vintid(*lr) == intid)
    }

    /// Makes an interrupt pending that arrived as a message or an edge (SGI, linked SPI).
    #[inline]
    pub fn raise(&mut self, dist: &Distributor, host: &mut impl Host, intid: u32) {
        let (word, bit) = place(intid);
        if let Some(pending) = self.pending.get_mut(word) {
            *pending |= bit;
        }
        if self.wanted(dist, word) & bit != 0 {
            self.queue(dist, host, intid);
        }
    }

    /// The line of an emulated device goes up or down.
    pub fn set_line(&mut self, dist: &Distributor, host: &mut impl Host, intid: u32, up: bool) {
        let (word, bit) = place(intid);
        let Some(level) = self.level.get_mut(word) else {
            return;
        };
        if (*level & bit != 0) == up {
            return;
        }
        *level ^= bit;
        let is_level = self.is_level(dist, intid);
        if up {
            if !is_level {
                self.raise(dist, host, intid);
            } else if self.wanted(dist, word) & bit != 0 {
                self.queue(dist, host, intid);
            }
        } else if is_level && let Some((n, entry)) = self.find(host, intid) {
            // It is pending no longer; if the guest has taken it, it stays active.
            host.set_lr(
                n,
                if entry & lr::ACTIVE != 0 {
                    entry & !lr::PENDING
                } else {
                    0
                },
            );
        }
    }

    /// Puts an interrupt that is wanted and pending into a list register, if one can be had.
    pub(super) fn queue(&mut self, dist: &Distributor, host: &mut impl Host, intid: u32) {
        let (word, bit) = place(intid);
        let usable = lr_mask(host);
        let empty = host.empty();
        let mut weakest: Option<(u32, u64)> = None;
        for n in each(0, !empty & (usable | 1 << VTIMER_LR)) {
            let entry = host.lr(n);
            if lr::vintid(entry) == intid {
                // A linked interrupt cannot be pending again while it is active.
                if entry & lr::HW == 0 {
                    host.set_lr(n, entry | lr::PENDING);
                    self.forget(word, bit);
                }
                return;
            }
            let taken = entry & lr::ACTIVE != 0 || n == VTIMER_LR;
            if !taken && weakest.is_none_or(|(_, w)| lr::priority(entry) > lr::priority(w)) {
                weakest = Some((n, entry));
            }
        }
        if self.active.get(word).is_none_or(|active| active & bit != 0) {
            return;
        }
        let new = self.entry(dist, intid) | lr::PENDING;
        let free = empty & usable;
        if free != 0 {
            host.set_lr(free.trailing_zeros(), new);
            self.forget(word, bit);
            return;
        }
        host.ask_refill(true);
        if let Some((n, entry)) = weakest
            && lr::priority(entry) > lr::priority(new)
        {
            let (word, bit) = place(lr::vintid(entry));
            self.remember(word, bit);
            host.set_lr(n, new);
            let (word, bit) = place(intid);
            self.forget(word, bit);
        }
    }

    pub(super) fn remember(&mut self, word: usize, bit: u32) {
        if let Some(pending) = self.pending.get_mut(word) {
            *pending |= bit;
        }
    }

    pub(super) fn forget(&mut self, word: usize, bit: u32) {
        if let Some(pending) = self.pending.get_mut(word) {
            *pending &= !bit;
        }
    }

    /// Pending or up, wanted, and not active.
    pub(super) fn waiting(&self, dist: &Distributor, word: usize) -> u32 {
        let (Some(pending), Some(level), Some(active)) = (
            self.pending.get(word),
            self.level.get(word),
            self.active.get(word),
        ) else {
            return 0;
        };
        let levels = if word == 0 {
            !self.edge
        } else {
            dist.edge.get(word).map_or(0, |edge| !edge.load(Relaxed))
        };
        (pending | level & levels) & self.wanted(dist, word) & !active
    }

    /// Maintenance interrupt: `ended` are the list registers whose interrupt the guest has deactivated
    /// and which asked for it (ICH_EISR_EL2). Fills what is free, the most urgent first.
    pub fn maintain(&mut self, dist: &Distributor, host: &mut impl Host, ended: u32) {
        for n in each(0, ended & lr_mask(host)) {
            host.set_lr(n, 0);
        }
        self.refill(dist, host);
    }

    fn refill(&mut self, dist: &Distributor, host: &mut impl Host) {
        // One list register for each turn, so at most 16 turns.
        for _ in 0..host.list_registers() {
            if host.empty() & lr_mask(host) == 0 {
                host.ask_refill(true);
                return;
            }
            let Some(intid) = self.most_urgent(dist, host) else {
                host.ask_refill(false);
                return;
            };
            self.queue(dist, host, intid);
        }
    }

    fn most_urgent(&self, dist: &Distributor, host: &impl Host) -> Option<u32> {
        let mut held = [0u32; WORDS];
        for n in each(0, !host.empty() & (lr_mask(host) | 1 << VTIMER_LR)) {
            let (word, bit) = place(lr::vintid(host.lr(n)));
            if let Some(held) = held.get_mut(word) {
                *held |= bit;
            }
        }
        let mut best: Option<(u8, u32)> = None;
        for (word, held) in held.iter().enumerate() {
            for intid in each(word, self.waiting(dist, word) & !held) {
                let priority = self.priority(dist, intid);
                if best.is_none_or(|(most, _)| priority < most) {
                    best = Some((priority, intid));
                }
            }
        }
        best.map(|(_, intid)| intid)
    }

    /// The usual case of a write to ICC_SGI1R_EL1: to this vCPU, which wants the SGI and holds nothing
    /// else. `false` if it is another case, for [`Self::send_sgi`].
    #[inline(always)]
    pub fn send_sgi_to_self(&mut self, host: &mut impl Host, value: u64) -> bool {
        let intid = ((value >> 24) & 15) as u32;
        let usual = value & self.sgi_mask == self.sgi_self
            && self.direct >> intid & 1 != 0
            && !host.empty() & host.usable() == 0;
        if usual {
            let priority = self
                .priorities
                .get(intid as usize)
                .map_or(0, |priority| *priority);
            host.set_lr(1, lr::entry(intid, priority, true) | lr::PENDING);
        }
        usual
    }

    /// Write to ICC_SGI1R_EL1 (`group1`) or ICC_SGI0R_EL1: raises the SGI here if this vCPU is
    /// among the targets. Other targets do not exist in a VM of one vCPU and are ignored, as the
    /// architecture says of absent ones.
    #[inline]
    pub fn send_sgi(&mut self, dist: &Distributor, host: &mut impl Host, value: u64, group1: bool) {
        let intid = ((value >> 24) & 15) as u32;
        let listed = value & self.sgi_mask == self.sgi_self;
        let in_group = (self.group >> intid) & 1 == u32::from(group1);
        if listed && in_group {
            self.raise(dist, host, intid);
        }
    }
}

/// ICC_SGI1R_EL1: affinity 3, 2 and 1, the range selector, and "all but self".
const SGI_TARGETS: u64 = 0xff << 48 | 0xf << 44 | 1 << 40 | 0xff << 32 | 0xff << 16;

/// Affinity (as in GICR_TYPER) and range of a target in the places of ICC_SGI1R_EL1.
const fn sgi_route(affinity: u32) -> u64 {
    let (aff3, aff2) = ((affinity >> 24) as u64, (affinity >> 16 & 0xff) as u64);
    let (aff1, aff0) = ((affinity >> 8 & 0xff) as u64, (affinity & 0xff) as u64);
    aff3 << 48 | aff2 << 32 | aff1 << 16 | (aff0 / 16) << 44
}

/// Bit of a target in the target list of ICC_SGI1R_EL1.
const fn sgi_slot(affinity: u32) -> u64 {
    1 << (affinity & 15)
}

/// List registers for everything but the virtual timer.
#[inline(always)]
pub(super) fn lr_mask(host: &impl Host) -> u32 {
    host.usable()
}
