//! Holding vCPUs: one that is held does not run before a time has come, whatever CPU time it may have, and the others have its turns.
//! So who has used up something else than time, as accesses to memory ([`crate::bandwidth`]), waits until there is more.
//!
//! A hold is no sleep that was chosen, and is saved up no more than that: a server is asked again whether what is left of its budget
//! fits its deadline, and a fair vCPU comes back half a round behind the others at most.

use super::slot::{Slot, State};
use super::{NOBODY, SLOTS, Scheduler, Set, members, only};

/// The slots that are held.
#[derive(Clone, Debug)]
pub(super) struct Held {
    slots: Set,
    /// Until when, by slot.
    until: [u64; SLOTS],
}

impl Held {
    pub(super) const NOBODY: Self = Self {
        slots: 0,
        until: [0; SLOTS],
    };

    /// The slots.
    #[inline(always)]
    pub(super) const fn slots(&self) -> Set {
        self.slots
    }

    /// The earliest time at which one of `slots` may go on; [`u64::MAX`] if none is held.
    pub(super) fn next(&self, slots: Set) -> u64 {
        let until = members(slots & self.slots).filter_map(|slot| self.until.get(slot));
        until.copied().min().unwrap_or(u64::MAX)
    }

    /// Lets go of a slot.
    pub(super) const fn forget(&mut self, slot: usize) {
        self.slots &= !only(slot);
    }

    /// Lets go of the slots whose time has come, and returns them.
    fn take(&mut self, now: u64) -> Set {
        let mut taken = 0;
        for slot in members(self.slots) {
            if self.until.get(slot).is_some_and(|until| now >= *until) {
                taken |= only(slot);
            }
        }
        self.slots &= !taken;
        taken
    }
}

impl<const HOLDS: bool> Scheduler<HOLDS> {
    /// Holds a vCPU until a time has come. The caller calls [`Self::next`]. Has no effect on a slot without one, or without `HOLDS`.
    pub fn hold(&mut self, slot: usize, until: u64, now: u64) {
        self.settle(now);
        let Some(place) = self.slots.get_mut(slot) else {
            return;
        };
        if !HOLDS || place.state == State::Absent {
            return;
        }
        place.account.overruns = place.account.overruns.wrapping_add(1);
        if let Some(time) = self.held.until.get_mut(slot) {
            *time = until;
            self.held.slots |= only(slot);
        }
        self.sort(slot);
    }

    /// Lets those go on whose time has come.
    #[inline(never)]
    pub(super) fn let_go(&mut self, now: u64) {
        let taken = self.held.take(now);
        if taken == 0 {
            return;
        }
        let others = self.able() & self.fair & !taken;
        let least = self.behind(others);
        let least = least.and_then(|slot| Some(self.slots.get(slot)?.virtual_time));
        let round = self.weights.round();
        for slot in members(taken) {
            if let Some(place) = self.slots.get_mut(slot).filter(|place| place.is_awake()) {
                place.comes_back(now, least, round);
            }
            self.sort(slot);
        }
    }

    /// The earliest time at which one of `waiting` may run. A fair vCPU goes before no server, and no timer interrupts one for it: that is looked
    /// at when the server's turn is over.
    #[inline(never)]
    pub(super) fn next_refill(&self, mut waiting: Set) -> u64 {
        if self.current != NOBODY && self.fair & only(self.current) == 0 {
            waiting &= !self.fair;
        }
        let refills = self.of(waiting).filter_map(Slot::waits_until);
        let held = if HOLDS {
            self.held.next(waiting)
        } else {
            u64::MAX
        };
        refills.fold(held, u64::min)
    }
}
