//! Short cuts past [`Scheduler::next`] for decisions that are frequent and simple: each takes the same decision in a fraction of the
//! instructions, or leaves everything as it was.

use super::set::{NOBODY, Set, only};
use super::slot::State;
use super::{Scheduler, Turn};

/// What follows from a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Nobody has woken up.
    Nothing,
    /// The current vCPU goes on until then; WFI and WFE trap.
    Keeps(u64),
    /// The caller has to call [`Scheduler::next`].
    Looks,
}

impl<const HOLDS: bool> Scheduler<HOLDS> {
    /// [`Self::block`] at `from`, [`Self::wake`] and [`Self::next`] at `now` in one, for the sleep of
    /// a vCPU that was the last one awake ([`Self::is_last`]), during which nothing else happened.
    /// Returns until when the turn of the vCPU, which begins now, lasts; WFI and WFE trap as before.
    /// `None` if the vCPU may not run yet: the caller has to call [`Self::next`].
    #[inline(always)]
    pub fn slept(&mut self, from: u64, now: u64) -> Option<u64> {
        self.settle(from);
        self.charged = now;
        self.passes = false;
        self.ends = u64::MAX;
        let (floor, round) = (self.weights.floor(), self.weights.round());
        let place = self.slots.get_mut(self.current)?;
        place.wake(now, floor, round);
        let allowance = place.allowance();
        if allowance == 0 {
            self.current = NOBODY;
            return None;
        }
        place.start(now);
        Some(now.saturating_add(allowance))
    }

    /// [`Self::block`] and [`Self::next`] in one, where the heir of the current vCPU is known. `None`: it is not, and nothing has changed.
    #[inline(always)]
    pub fn block_for_heir(&mut self, now: u64) -> Option<Turn> {
        let (current, heir) = (self.current, self.waiting.first());
        let other = self.slots.get(heir)?.virtual_time;
        let old = self.slots.get_mut(current)?;
        // Not more than a slice, because others wait.
        let spent = now.wrapping_sub(self.charged);
        self.charged = now;
        old.charge_little(spent);
        // As in `settle`: of those that wait the heir is the furthest behind.
        let floor = self.weights.floor();
        let ahead = |time: u64| time.wrapping_sub(floor) as i64;
        self.weights
            .advance(ahead(old.virtual_time).min(ahead(other)));
        old.enter(State::Blocked, now);
        self.load = self.load.wrapping_sub(old.weight());
        self.awake &= !only(current);
        let others = self.awake & !only(heir);
        let new = self.slots.get_mut(heir)?;
        new.start(now);
        self.current = heir;
        self.ends = if others == 0 {
            u64::MAX
        } else {
            now.saturating_add(self.weights.slice_of(self.load, new))
        };
        self.waiting = self.waiting.rest();
        Some(Turn {
            slot: Some(heir),
            until: self.ends,
            trap_wfi: true,
            trap_wfe: others != 0,
        })
    }

    /// [`Self::wake_all`], and [`Self::next`] where that is simple.
    pub fn wake_and_keep(&mut self, slots: Set, now: u64) -> Woken {
        match self.wake_fair(slots, now) {
            Some(woken) => woken,
            None if self.wake_all(slots, now) => Woken::Looks,
            None => Woken::Nothing,
        }
    }

    /// The fast path of [`Self::wake_and_keep`]: one fair vCPU wakes up, and all that are awake are fair, without budgets and caps. `None`:
    /// it is not so simple, and nothing has changed.
    #[inline(always)]
    pub(super) fn wake_fair(&mut self, slots: Set, now: u64) -> Option<Woken> {
        let (slot, current) = (slots.trailing_zeros() as usize, only(self.current));
        let others = self.awake & !current;
        let simple = slots & slots.wrapping_sub(1) == 0
            && slots & self.fair & !self.awake != 0
            && self.awake != others
            && self.is_simple();
        if !simple || self.slots.get(slot)?.state != State::Blocked {
            return None;
        }
        self.sort_waiting(others);
        let first = self.slots.get(self.waiting.first());
        let waits = first.map(|first| first.virtual_time);
        // As in `settle`: the smallest virtual time is that of the current vCPU, or of the one that is furthest behind of those that wait.
        let spent = now.saturating_sub(self.charged);
        self.charged = self.charged.wrapping_add(spent);
        let floor = self.weights.floor();
        let ahead = |time: u64| time.wrapping_sub(floor) as i64;
        let old = self.slots.get_mut(self.current)?;
        old.charge_fair(spent);
        let behind = ahead(old.virtual_time);
        self.weights
            .advance(waits.map_or(behind, |time| behind.min(ahead(time))));
        let (floor, round) = (self.weights.floor(), self.weights.round());
        let new = self.slots.get_mut(slot)?;
        new.wake_fair(now, floor, round);
        self.awake |= slots;
        self.load = self.load.wrapping_add(new.weight());
        self.waiting = self.waiting.with_woken(slot, &self.slots);
        let first = self.waiting.first();
        if !self.goes_on(first, now) {
            return Some(Woken::Looks);
        }
        if now >= self.ends || self.ends == u64::MAX {
            let slot = self.slots.get_mut(self.current)?;
            self.ends = now.saturating_add(self.weights.slice_of(self.load, slot));
        }
        Some(Woken::Keeps(self.ends))
    }

    /// The fast path of [`Self::next`] for the end of a slice: the same decision in a fraction of
    /// the instructions. Returns the vCPU that runs next and until when; WFI and WFE trap as
    /// before. `None` if the decision is not so simple: the caller has to call [`Self::next`], and
    /// nothing has changed.
    ///
    /// May be called only when [`Turn::until`] has come, which is the end of the slice while an
    /// heir is known.
    #[inline(always)]
    pub fn end_turn(&mut self, now: u64) -> Option<(usize, u64)> {
        let (current, heir) = (self.current, self.waiting.first());
        let new = self.slots.get(heir)?.virtual_time;
        let old = self.slots.get_mut(current)?;
        // At most a slice and the delay of the timer, so neither this nor the virtual time of it
        // overflows.
        let spent = now.wrapping_sub(self.charged);
        let virtual_time = old
            .virtual_time
            .wrapping_add(old.in_little_virtual_time(spent));
        // The same condition as in `goes_on` after the end of a slice.
        let lag = new.wrapping_sub(virtual_time) as i64;
        if lag > 0 && lag > self.weights.grain_of(self.load, old) {
            return None;
        }
        old.virtual_time = virtual_time;
        old.account.ran = old.account.ran.wrapping_add(spent);
        old.enter(State::Ready, now);
        let new = self.slots.get_mut(heir)?;
        new.start(now);
        let until = now.wrapping_add(self.weights.slice_of(self.load, new));
        self.charged = now;
        self.current = heir;
        self.ends = until;
        self.waiting = self.waiting.rest().with(current, &self.slots);
        Some((heir, until))
    }
}
