//! The interface between a scheduler and a load balancer: how much its vCPUs use and want, and
//! moving a vCPU from one scheduler to another.

use super::slot::{Slot, State};
use super::{Policy, Scheduler, VISITORS, only};

/// A vCPU on its way from one scheduler to another, with its account and what is left of its cap.
#[derive(Clone, Copy, Debug)]
pub struct MigratingSlot {
    slot: Slot,
    /// Virtual time by which it was ahead of the floor of the pCPU that it left.
    ahead: i64,
}

/// Demand of a vCPU since it was created, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Weight of the vCPU; 0 if it is not fair.
    pub weight: u32,
    /// Time for which it ran.
    pub ran: u64,
    /// Time for which it was ready and did not run, up to now.
    pub waited: u64,
    /// Quota of its cap in each `period`.
    pub quota: u64,
    /// Period of its cap.
    pub period: u64,
}

impl<const HOLDS: bool> Scheduler<HOLDS> {
    /// Makes the scheduler trap WFI also for a vCPU that is alone on the pCPU, because others may
    /// migrate here.
    pub fn track_sleep(&mut self) {
        self.present |= VISITORS;
    }

    /// Returns the demand of a vCPU; its run time is up to the last charge.
    pub fn demand(&self, slot: usize, now: u64) -> Option<Demand> {
        let place = self.slots.get(slot)?;
        let waits = match place.state {
            State::Absent => return None,
            State::Ready => now.saturating_sub(place.since),
            _ => 0,
        };
        let (weight, quota, period) = match place.policy {
            Policy::Fair { quota, period, .. } => (place.weight(), quota, period),
            _ => (0, 1, 1),
        };
        Some(Demand {
            weight,
            ran: place.account.ran,
            waited: place.account.stolen.wrapping_add(waits),
            quota,
            period,
        })
    }

    /// Bars a vCPU from running because it is to leave, or lifts that bar. If it is changed or
    /// woken before it has left, it may get one more turn.
    pub fn bar(&mut self, slot: usize, barred: bool) {
        self.sort(slot);
        if barred {
            self.awake &= !only(slot);
            self.weigh();
        }
    }

    /// Takes out a fair vCPU that does not run, for another scheduler. `None` if the slot has no
    /// such vCPU.
    #[inline(never)]
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
        self.held.forget(slot);
        self.sort(slot);
        let ahead = taken.virtual_time.wrapping_sub(floor) as i64;
        let slot = taken;
        Some(MigratingSlot { slot, ahead })
    }

    /// Takes in a vCPU that has left another scheduler, and wakes it: the vCPU checks for itself
    /// what became pending for it on the way. Returns what [`Self::wake`] returns.
    ///
    /// Its virtual time is as far from the floor here as it was on the pCPU that it left, by a
    /// round at most; a cap that is used up stays used up.
    #[inline(never)]
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
        // A vCPU that was ready has waited since before it moved.
        if let (Some(before), Some(place)) = (before, self.slots.get_mut(slot)) {
            place.waits_since(before);
        }
        look
    }
}
