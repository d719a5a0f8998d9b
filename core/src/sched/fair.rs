//! Time that no server takes, by weight. Each fair vCPU has a virtual time that runs by 1/weight of the real one; the
//! one that is behind goes first. Its slice is its part, by weight, of a round, so that over each round everybody
//! who is always ready gets their share. A vCPU that wakes starts at most half a round behind the others: sleep is not saved up.
//! A cap is a quota in each window; who has used it waits for the next.
//!
//! Virtual times wrap; they are compared by their difference, which is never more than some rounds.

use super::slot::{Slot, UNIT};

/// A slice is not shorter than this part of a round.
const SHORTEST: u64 = 16;

/// What the fair vCPUs have together.
#[derive(Clone, Debug)]
pub(super) struct Fair {
    round: u64,
    /// Virtual time before which no vCPU is that is ready. Never goes back.
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

    /// All that are ready are so far ahead of the floor, at least.
    pub(super) fn advance(&mut self, ahead: i64) {
        if ahead > 0 {
            self.floor = self.floor.wrapping_add(ahead as u64);
        }
    }

    /// Length of a slice in ticks, beside vCPUs with so much weight together with this one.
    pub(super) fn slice(&self, all: u32, slot: &Slot) -> u64 {
        let part = self
            .round
            .wrapping_mul(slot.weight().into())
            .checked_div(all.into())
            .unwrap_or(0);
        part.max(self.shortest())
    }

    /// The same, which is worked out only if it was for another weight last.
    #[inline(always)]
    pub(super) fn slice_of(&self, all: u32, slot: &mut Slot) -> u64 {
        if slot.slice.0 != all {
            slot.slice = (all, self.slice(all, slot));
        }
        slot.slice.1
    }

    /// A slice is no shorter, in ticks.
    pub(super) fn shortest(&self) -> u64 {
        (self.round / SHORTEST).max(1)
    }

    /// What a round is in the virtual time of a vCPU that is always ready.
    pub(super) fn virtual_round(&self, all: u32) -> i64 {
        (self.round.wrapping_mul(UNIT) / u64::from(all.max(1))) as i64
    }

    /// How far behind the current vCPU one that wakes must be, in virtual time, to go first: half of its own slice.
    pub(super) fn grain(&self, all: u32, slot: &Slot) -> i64 {
        slot.in_virtual_time(self.slice(all, slot) / 2) as i64
    }
}
