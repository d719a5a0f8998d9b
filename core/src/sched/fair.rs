//! Scheduling of the time that no server takes, by weight. Each fair vCPU has a virtual time that
//! advances at 1/weight of real time; the vCPU with the smallest virtual time goes first. Its slice
//! is its part, by weight, of a round, so over each round every vCPU that is always ready gets its
//! share. A vCPU that wakes starts at most half a round behind the others: sleep is not saved up. A
//! cap is a quota in each period; a vCPU that has used up its quota waits for the next period.
//!
//! Virtual times wrap; they are compared by their difference, which is never more than a few
//! rounds.

use super::slot::{Slot, UNIT};

/// Divisor of a round that gives the length of the shortest slice.
const SHORTEST: u64 = 16;

/// State shared by all fair vCPUs of a pCPU.
#[derive(Clone, Debug)]
pub(super) struct Fair {
    round: u64,
    /// The greatest value so far of the smallest virtual time among the ready fair vCPUs. Never
    /// decreases; a vCPU that wakes may be half a round behind it.
    floor: u64,
}

impl Fair {
    pub(super) const fn new(round: u64) -> Self {
        Self { round, floor: 0 }
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    pub(super) fn round(&self) -> u64 {
        self.round
    }

    /// Advances the floor by `ahead`, which is how far the ready vCPU with the smallest virtual
    /// time is ahead of it.
    pub(super) fn advance(&mut self, ahead: i64) {
        if ahead > 0 {
            self.floor = self.floor.wrapping_add(ahead as u64);
        }
    }

    /// Returns the length of a slice in ticks; `all` is the total weight of the ready vCPUs, this
    /// one included.
    #[inline(always)]
    pub(super) fn slice(&self, all: u32, slot: &Slot) -> u64 {
        let part = self
            .round
            .wrapping_mul(slot.weight().into())
            .checked_div(all.into())
            .unwrap_or(0);
        part.max(self.shortest())
    }

    /// [`Self::slice`], cached in the slot and computed again only when the total weight has
    /// changed.
    #[inline(always)]
    pub(super) fn slice_of(&self, all: u32, slot: &mut Slot) -> u64 {
        if slot.slice.0 != all {
            self.slice_anew(all, slot);
        }
        slot.slice.1
    }

    #[inline(never)]
    fn slice_anew(&self, all: u32, slot: &mut Slot) {
        slot.slice = (all, self.slice(all, slot));
        slot.grain = self.grain(all, slot);
    }

    /// [`Self::grain`], cached as [`Self::slice_of`] is.
    #[inline(always)]
    pub(super) fn grain_of(&self, all: u32, slot: &mut Slot) -> i64 {
        self.slice_of(all, slot);
        slot.grain
    }

    /// Length of the shortest slice, in ticks.
    pub(super) fn shortest(&self) -> u64 {
        (self.round / SHORTEST).max(1)
    }

    /// Virtual time by which a vCPU that is always ready advances in a round.
    pub(super) fn virtual_round(&self, all: u32) -> i64 {
        (self.round.wrapping_mul(UNIT) / u64::from(all.max(1))) as i64
    }

    /// Returns the virtual time by which a vCPU that wakes must be behind the current one to
    /// preempt it: half of the slice of the vCPU that wakes.
    pub(super) fn grain(&self, all: u32, slot: &Slot) -> i64 {
        slot.in_virtual_time(self.slice(all, slot) / 2) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::super::slot::Policy;
    use super::*;

    #[test]
    fn what_is_kept_of_a_slice_is_that_of_the_vcpus_that_are_awake() {
        let fair = Fair::new(10_000);
        let policy = |weight| Policy::Fair {
            weight,
            quota: 1,
            period: 1,
        };
        let mut slot = Slot::new(policy(300), 0, 0, 0);
        for all in [300, 600, 600, 900, 300] {
            let (slice, grain) = (fair.slice(all, &slot), fair.grain(all, &slot));
            assert!(grain > 0 && slice > 0);
            assert_eq!(fair.grain_of(all, &mut slot), grain, "{all}");
            assert_eq!(fair.slice_of(all, &mut slot), slice, "{all}");
        }
        // Another weight has another slice.
        slot.change(policy(100), 0, 0);
        let grain = fair.grain(300, &slot);
        assert_eq!(fair.grain_of(300, &mut slot), grain);
    }
}
