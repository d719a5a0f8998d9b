//! What a load balancer needs of a scheduler: how much its vCPUs use and want, and taking one along to another.

use super::slot::{Slot, State};
use super::{Policy, Scheduler, VISITORS, only};

/// A vCPU between two schedulers, with what it has had and what it may still have.
#[derive(Clone, Copy, Debug)]
pub struct MigratingSlot {
    slot: Slot,
    /// How far it is ahead of those it leaves, in virtual time.
    ahead: i64,
}

/// What a vCPU has used and wanted since it was made, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Its weight; 0 if it is not fair.
    pub weight: u32,
    /// It ran.
    pub ran: u64,
    /// It was ready and did not run, up to now.
    pub waited: u64,
    /// What it may have at most, in each window of its cap.
    pub quota: u64,
    /// That window.
    pub window: u64,
}

impl Scheduler {
    /// Sleep of each vCPU must be seen, also of one that is alone: others may come.
    pub fn track_sleep(&mut self) {
        self.present |= VISITORS;
    }

    /// What a vCPU has used, up to `now` if that has been charged.
    pub fn demand(&self, slot: usize, now: u64) -> Option<Demand> {
        let place = self.slots.get(slot)?;
        let waits = match place.state {
            State::Absent => return None,
            State::Ready => now.saturating_sub(place.since),
            _ => 0,
        };
        let (weight, quota, window) = match place.policy {
            Policy::Fair { quota, window, .. } => (place.weight(), quota, window),
            _ => (0, 1, 1),
        };
        Some(Demand {
            weight,
            ran: place.account.ran,
            waited: place.account.stolen.wrapping_add(waits),
            quota,
            window,
        })
    }

    /// No turn for a vCPU from now on, because it is to leave; or turns again. If it is changed or woken before it has left, it may get one more.
    pub fn bar(&mut self, slot: usize, barred: bool) {
        self.sort(slot);
        if barred {
            self.awake &= !only(slot);
            self.weigh();
        }
    }

    /// Takes out a fair vCPU that does not run, for another scheduler. `None` if it is none.
    pub fn detach(&mut self, slot: usize, now: u64) -> Option<MigratingSlot> {
        self.settle(now);
        let floor = self.weights.floor();
        if self.current == slot {
            return None;
        }
        let place = self.slots.get_mut(slot).filter(|place| place.is_fair())?;
        if place.state == State::Absent {
            return None;
        }
        let mut taken = *place;
        taken.account.moves = taken.account.moves.wrapping_add(1);
        *place = Slot::absent();
        self.sort(slot);
        let ahead = taken.virtual_time.wrapping_sub(floor) as i64;
        let slot = taken;
        Some(MigratingSlot { slot, ahead })
    }

    /// Takes in a vCPU that has left another scheduler, and wakes it: it looks for itself what has come for it on the way.
    /// `true` as [`Self::wake`].
    ///
    /// It is ahead of those that it finds as far as of those that it has left, a round at most; a cap that is used up stays so.
    pub fn attach(&mut self, slot: usize, migrating_slot: MigratingSlot, now: u64) -> bool {
        self.settle(now);
        let floor = self.weights.floor();
        let mut taken = migrating_slot.slot;
        let round = i64::try_from(taken.in_virtual_time(self.weights.round())).unwrap_or(i64::MAX);
        let ahead = migrating_slot.ahead.clamp(-round, round);
        taken.virtual_time = floor.wrapping_add_signed(ahead);
        let before = taken.since_woken();
        taken.state = State::Blocked;
        match self.slots.get_mut(slot) {
            Some(place) if place.state == State::Absent => *place = taken,
            _ => return false,
        }
        self.sort(slot);
        let look = self.wake(slot, now);
        // One that was ready has waited since then.
        if let (Some(before), Some(place)) = (before, self.slots.get_mut(slot)) {
            place.waits_since(before);
        }
        look
    }
}
