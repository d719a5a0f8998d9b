//! Time that no server takes, by weight. Each fair vCPU has a virtual time that runs by 1/weight of the real one; the
//! one that is behind goes first. Its slice is its part, by weight, of a round, so that over each round everybody
//! who is always ready gets their share. A vCPU that wakes starts at most half a round behind the others: sleep is not saved up.
//! A cap is a quota in each window; who has used it waits for the next.
//!
//! Virtual times wrap; they are compared by their difference, which is never more than some rounds.

use super::slot::Slot;

/// Virtual ticks for each tick of a vCPU with weight 1.
pub(super) const UNIT: u64 = 1 << 16;
/// A slice is not shorter than this part of a round.
const SHORTEST: u64 = 16;

/// What the fair vCPUs have together.
#[derive(Debug)]
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

    /// Virtual time has gone on.
    pub(super) fn advance(&mut self, slots: &[Slot]) {
        let behind = slots
            .iter()
            .filter(|slot| slot.is_fair() && slot.is_awake())
            .map(|slot| slot.virtual_time.wrapping_sub(self.floor) as i64)
            .min();
        if let Some(ahead) = behind
            && ahead > 0
        {
            self.floor = self.floor.wrapping_add(ahead as u64);
        }
    }

    /// Length of a slice in ticks.
    pub(super) fn slice(&self, slots: &[Slot], slot: &Slot) -> u64 {
        let all = u64::from(weight_of(slots)).max(1);
        let part = self
            .round
            .wrapping_mul(slot.weight().into())
            .checked_div(all)
            .unwrap_or(0);
        part.max(self.round / SHORTEST).max(1)
    }

    /// What a round is in the virtual time of a vCPU that is always ready.
    pub(super) fn virtual_round(&self, slots: &[Slot]) -> i64 {
        let all = u64::from(weight_of(slots)).max(1);
        (self.round.wrapping_mul(UNIT) / all) as i64
    }

    /// How far behind the current vCPU one that wakes must be, in virtual time, to go first: half of its own slice.
    pub(super) fn grain(&self, slots: &[Slot], slot: &Slot) -> i64 {
        slot.in_virtual_time(self.slice(slots, slot) / 2) as i64
    }
}

/// Weight of all fair vCPUs that are awake.
pub(super) fn weight_of(slots: &[Slot]) -> u32 {
    slots
        .iter()
        .filter(|slot| slot.is_fair() && slot.is_awake())
        .fold(0u32, |sum, slot| sum.wrapping_add(slot.weight().into()))
}

/// The one that is furthest behind; of equals the one that runs, then the lower number. With a `group`, one of that
/// group goes first, unless another is a round behind it: siblings that pass to each other do not shut others out.
pub(super) fn choose(
    slots: &[Slot],
    current: Option<usize>,
    group: Option<(u16, i64)>,
    able: impl Fn(usize, &Slot) -> bool,
) -> Option<usize> {
    let behind = |wanted: &dyn Fn(&Slot) -> bool| {
        let mut best: Option<(usize, &Slot)> = None;
        for (n, slot) in (0..slots.len()).zip(slots) {
            if !slot.is_fair() || !able(n, slot) || !wanted(slot) {
                continue;
            }
            let better = best.is_none_or(|(_, than)| match slot.lag(than) {
                0 => current == Some(n),
                lag => lag > 0,
            });
            if better {
                best = Some((n, slot));
            }
        }
        best
    };
    let (first, slot) = behind(&|_| true)?;
    let sibling = group.and_then(|(group, round)| {
        let (n, sibling) = behind(&|slot| slot.group == group)?;
        (slot.lag(sibling) <= round).then_some(n)
    });
    Some(sibling.unwrap_or(first))
}
