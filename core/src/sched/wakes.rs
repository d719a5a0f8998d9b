//! When the vCPUs of a pCPU that do not run have to be woken for their timers. The times lie side by side, so that to look at one more is two
//! loads and a few compares.

use super::SLOTS;
use super::set::Set;

/// The time of each slot, or [`Wakes::NEVER`].
#[derive(Clone, Debug)]
pub struct Wakes([u64; SLOTS]);

impl Wakes {
    /// The time of a slot that nothing has to wake.
    pub const NEVER: u64 = u64::MAX;

    /// None has a time.
    pub const fn new() -> Self {
        Self([Self::NEVER; SLOTS])
    }

    /// The vCPU in a slot must be woken at `at`.
    #[inline(always)]
    pub fn set(&mut self, slot: usize, at: u64) {
        if let Some(place) = self.0.get_mut(slot) {
            *place = at;
        }
    }

    /// The vCPU in a slot runs, or is not here any more. Returns when it had to be woken.
    #[inline(always)]
    pub fn clear(&mut self, slot: usize) -> u64 {
        self.0
            .get_mut(slot)
            .map_or(Self::NEVER, |place| core::mem::replace(place, Self::NEVER))
    }

    /// Takes those of the first `used` slots whose time has come by `now`, one bit for each, and says whose is the next.
    #[inline(always)]
    pub fn take(&mut self, used: usize, now: u64) -> (Set, u64) {
        let (mut found, mut bit, mut next): (Set, Set, u64) = (0, 1, Self::NEVER);
        for at in self.0.get_mut(..used).unwrap_or_default() {
            if *at <= now {
                *at = Self::NEVER;
                found |= bit;
            }
            next = next.min(*at);
            bit = bit.wrapping_shl(1);
        }
        (found, next)
    }

    /// The earliest of the first `used` slots.
    pub fn next(&self, used: usize) -> u64 {
        let all = self.0.get(..used).unwrap_or_default();
        all.iter().fold(Self::NEVER, |next, at| next.min(*at))
    }
}

impl Default for Wakes {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn those_are_taken_whose_time_has_come_and_the_others_stay(
            times in any::<[Option<u8>; SLOTS]>(),
            used in 0..=SLOTS,
            now in any::<u8>(),
        ) {
            let mut wakes = Wakes::new();
            for (slot, time) in times.iter().enumerate() {
                if let Some(time) = time {
                    wakes.set(slot, (*time).into());
                }
            }
            let here = || times[..used].iter().enumerate();
            let mut due = 0;
            for (slot, _) in here().filter(|(_, time)| time.is_some_and(|time| time <= now)) {
                due |= 1 << slot;
            }
            let least = here().filter_map(|(_, time)| *time).min();
            prop_assert_eq!(wakes.next(used), least.map_or(Wakes::NEVER, u64::from));
            let later = here().filter_map(|(_, time)| *time).filter(|time| *time > now).min();
            let later = later.map_or(Wakes::NEVER, u64::from);
            prop_assert_eq!(wakes.take(used, now.into()), (due, later));
            prop_assert_eq!(wakes.next(used), later);
            for (slot, time) in times.iter().enumerate() {
                let taken = due >> slot & 1 != 0;
                let left = time.filter(|_| !taken).map_or(Wakes::NEVER, u64::from);
                prop_assert_eq!(wakes.clear(slot), left);
                prop_assert_eq!(wakes.clear(slot), Wakes::NEVER);
            }
        }
    }

    #[test]
    fn who_is_no_slot_has_no_time() {
        let mut wakes = Wakes::new();
        wakes.set(SLOTS, 1);
        assert_eq!(wakes.next(SLOTS), Wakes::NEVER);
        assert_eq!(wakes.clear(SLOTS), Wakes::NEVER);
    }
}
