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

    /// With one more slot. Mostly it is the first one.
    #[inline(always)]
    pub(super) fn with(self, slot: usize, slots: &[Slot; SLOTS]) -> Self {
        if self == Self::NOBODY {
            return Self(u64::MAX << 8 | slot as u64);
        }
        self.with_beside(slot, slots)
    }

    /// The slow path of [`Self::with`]: its place among others, looked for from the end.
    #[inline(never)]
    fn with_beside(self, slot: usize, slots: &[Slot; SLOTS]) -> Self {
        let Some(new) = slots.get(slot) else {
            return self;
        };
        // Bits of those that stay in front of it.
        let mut front = 64u32.wrapping_sub(self.0.leading_ones() & !7);
        while front != 0 {
            let last = (self.0.wrapping_shr(front.wrapping_sub(8)) & 0xff) as usize;
            let Some(other) = slots.get(last) else {
                break;
            };
            let lead = new.virtual_time.wrapping_sub(other.virtual_time) as i64;
            if lead > 0 || lead == 0 && last < slot {
                break;
            }
            front = front.wrapping_sub(8);
        }
        let before = !u64::MAX.wrapping_shl(front);
        let behind = (self.0 & !before).wrapping_shl(8);
        Self(behind | (slot as u64).wrapping_shl(front) | self.0 & before)
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
        ) {
            let ahead = ahead.map(|more| u64::from(more % 6));
            let slots = slots(ahead.map(|more| begin.wrapping_add(more)));
            let put = &put[..number];
            let waiting = put.iter().fold(Waiting::NOBODY, |waiting, slot| waiting.with(*slot, &slots));
            let mut expected = put.to_vec();
            expected.sort_by_key(|slot| (ahead[*slot], *slot));
            prop_assert_eq!(all(waiting), expected);
        }
    }

    #[test]
    fn nobody_and_who_is_no_slot_do_not_wait() {
        let slots = slots([0; SLOTS]);
        assert!(Waiting::NOBODY.first() >= SLOTS);
        let one = Waiting::NOBODY.with(0, &slots);
        assert_eq!(all(one), [0]);
        assert_eq!(one.with(SLOTS, &slots), one);
    }
}
