//! The fair vCPUs that wait for a pCPU, in the order of their virtual times. Who ends its turn is mostly the furthest ahead, so that it
//! is put at the end by one comparison, and who comes next is known without looking at the others.

use super::SLOTS;
use super::slot::Slot;

/// Slots in the order in which they run, one byte each from the lowest on; bytes behind the last are all ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting(u64);

impl Waiting {
    /// Nobody waits, or the order is not known.
    pub(super) const NOBODY: Self = Self(u64::MAX);

    /// This slot alone waits.
    pub(super) const fn only(slot: u32) -> Self {
        Self(u64::MAX << 8 | slot as u64)
    }

    /// Who runs next: the furthest behind, of equals the lowest number. No slot if there is nobody.
    #[inline(always)]
    pub(super) const fn first(self) -> usize {
        (self.0 & 0xff) as usize
    }

    /// The others behind the first one.
    #[inline(always)]
    pub(super) const fn rest(self) -> Self {
        Self(!((!self.0).wrapping_shr(8)))
    }

    /// With one whose turn has ended, which is mostly the furthest ahead.
    #[inline(always)]
    pub(super) fn with(self, slot: usize, slots: &[Slot; SLOTS]) -> Self {
        let end = self.end();
        if end == 0 || self.is_behind(end, slot, slots) {
            // The byte there is all ones.
            return Self(self.0 ^ (slot as u64 ^ 0xff).wrapping_shl(end));
        }
        self.with_before(end.wrapping_sub(8), slot, slots)
    }

    /// With one that has woken up, which is mostly the furthest behind.
    #[inline(always)]
    pub(super) fn with_woken(self, slot: usize, slots: &[Slot; SLOTS]) -> Self {
        if self == Self::NOBODY || !self.is_behind(8, slot, slots) {
            return Self(self.0.wrapping_shl(8) | slot as u64);
        }
        self.with_before(self.end(), slot, slots)
    }

    /// The slow path of both: its place is not behind that bit.
    #[inline(never)]
    fn with_before(self, mut at: u32, slot: usize, slots: &[Slot; SLOTS]) -> Self {
        while at != 0 && !self.is_behind(at, slot, slots) {
            at = at.wrapping_sub(8);
        }
        let before = !u64::MAX.wrapping_shl(at);
        let behind = (self.0 & !before).wrapping_shl(8);
        Self(behind | (slot as u64).wrapping_shl(at) | self.0 & before)
    }

    /// How many bits those take that wait.
    #[inline(always)]
    const fn end(self) -> u32 {
        64u32.wrapping_sub(self.0.leading_ones() & !7)
    }

    /// Whether a slot runs after the one that ends at a bit.
    #[inline(always)]
    fn is_behind(self, end: u32, slot: usize, slots: &[Slot; SLOTS]) -> bool {
        let other = (self.0.wrapping_shr(end.wrapping_sub(8)) & 0xff) as usize;
        let (Some(new), Some(old)) = (slots.get(slot), slots.get(other)) else {
            return true;
        };
        let lead = new.virtual_time.wrapping_sub(old.virtual_time) as i64;
        lead > 0 || lead == 0 && other < slot
    }
}

#[cfg(test)]
mod tests {
    use super::super::slot::Policy;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn slots(times: [u64; SLOTS]) -> [Slot; SLOTS] {
        times.map(|time| {
            let mut slot = Slot::new(Policy::Pinned, 0, 0, 0);
            slot.virtual_time = time;
            slot
        })
    }

    fn all(mut waiting: Waiting) -> Vec<usize> {
        let mut found = Vec::new();
        while waiting != Waiting::NOBODY {
            found.push(waiting.first());
            waiting = waiting.rest();
        }
        found
    }

    proptest! {
        /// Around the end of virtual time as well, and with equal ones.
        #[test]
        fn they_run_in_the_order_of_their_times(
            begin in prop_oneof![Just(0), Just(u64::MAX - 2), any::<u64>()],
            ahead in any::<[u8; SLOTS]>(),
            put in Just((0..SLOTS).collect::<Vec<_>>()).prop_shuffle(),
            number in 0..=SLOTS,
            woken in any::<u8>(),
        ) {
            let ahead = ahead.map(|more| u64::from(more % 6));
            let slots = slots(ahead.map(|more| begin.wrapping_add(more)));
            let put = &put[..number];
            let waiting = put.iter().fold(Waiting::NOBODY, |waiting, slot| match woken >> slot & 1 {
                0 => waiting.with(*slot, &slots),
                _ => waiting.with_woken(*slot, &slots),
            });
            let mut expected = put.to_vec();
            expected.sort_by_key(|slot| (ahead[*slot], *slot));
            prop_assert_eq!(all(waiting), expected);
        }
    }

    #[test]
    fn nobody_is_no_slot() {
        let slots = slots([0; SLOTS]);
        assert!(Waiting::NOBODY.first() >= SLOTS);
        assert_eq!(all(Waiting::NOBODY.with(0, &slots)), [0]);
        assert_eq!(all(Waiting::only(6)), [6]);
    }
}
