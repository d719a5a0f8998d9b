//! When a service thread looks at polled devices: each once in its period, on a grid, so that looks do not drift. A thread that comes
//! late looks once for all that it has missed.

use bulkhead_abi::plan::MAX_VIRTIO_DEVICES;

/// The polled devices of a service thread, by row of the plan. Times are in ticks of the physical counter.
#[derive(Debug)]
pub struct Polls {
    /// A bit for each polled device.
    devices: u64,
    /// For each the time of its next look, and the time from one to the next.
    each: [(u64, u64); MAX_VIRTIO_DEVICES],
    /// The earliest of those times; `u64::MAX`: no device is polled.
    soonest: u64,
}

impl Default for Polls {
    fn default() -> Self {
        Self::new()
    }
}

impl Polls {
    /// No device.
    pub const fn new() -> Self {
        Self {
            devices: 0,
            each: [(u64::MAX, 0); MAX_VIRTIO_DEVICES],
            soonest: u64::MAX,
        }
    }

    /// Adds a device, which is looked at once in `period` ticks, from `now` on.
    pub fn add(&mut self, device: usize, period: u64, now: u64) {
        if let Some(place) = self.each.get_mut(device) {
            *place = (now, period);
            self.devices |= 1u64.wrapping_shl(device as u32);
            self.soonest = self.soonest.min(now);
        }
    }

    /// The time of the next look, if a device is polled.
    pub fn next(&self) -> Option<u64> {
        (self.devices != 0).then_some(self.soonest)
    }

    /// Takes the devices that are to be looked at, a bit for each. Each has its next look on its grid, behind `now`.
    #[inline(never)]
    pub fn take(&mut self, now: u64) -> u64 {
        if now < self.soonest {
            return 0;
        }
        let (mut found, mut rest) = (0, self.devices);
        self.soonest = u64::MAX;
        while rest != 0 {
            let device = rest.trailing_zeros();
            rest &= rest.wrapping_sub(1);
            let Some((at, period)) = self.each.get_mut(device as usize) else {
                continue;
            };
            if let Some(late) = now.checked_sub(*at) {
                found |= 1u64.wrapping_shl(device);
                let over = late.checked_rem(*period).unwrap_or(0);
                *at = now.wrapping_sub(over).saturating_add(*period);
            }
            self.soonest = self.soonest.min(*at);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn each_device_has_its_period() {
        let mut polls = Polls::new();
        assert_eq!((polls.next(), polls.take(u64::MAX)), (None, 0));
        polls.add(3, 100, 1000);
        polls.add(63, 250, 1000);
        assert_eq!(polls.next(), Some(1000));
        assert_eq!(polls.take(999), 0);
        assert_eq!(polls.take(1000), 1 << 63 | 1 << 3);
        assert_eq!(polls.take(1000), 0, "once");
        assert_eq!((polls.next(), polls.take(1100)), (Some(1100), 1 << 3));
        assert_eq!((polls.next(), polls.take(1200)), (Some(1200), 1 << 3));
        assert_eq!((polls.next(), polls.take(1250)), (Some(1250), 1 << 63));
        assert_eq!(polls.next(), Some(1300));
    }

    #[test]
    fn a_thread_that_comes_late_looks_once_and_stays_on_the_grid() {
        let mut polls = Polls::new();
        polls.add(0, 100, 1000);
        assert_eq!(polls.take(1599), 1);
        assert_eq!((polls.next(), polls.take(1599)), (Some(1600), 0));
        assert_eq!(polls.take(1600), 1);
        assert_eq!(polls.next(), Some(1700), "one that is in time to the tick");
    }

    proptest! {
        /// Who looks whenever something is due looks at each device in each of its periods, and never twice in one.
        #[test]
        fn in_each_period_there_is_a_look(
            periods in proptest::collection::vec(1u64..500, 1..64),
            lates in proptest::collection::vec(0u64..40, 1..400),
        ) {
            let mut polls = Polls::new();
            for (device, period) in periods.iter().enumerate() {
                polls.add(device, *period, 0);
            }
            let mut looks: Vec<Vec<u64>> = periods.iter().map(|_| Vec::new()).collect();
            let mut now = 0;
            for late in lates {
                now = now.max(polls.next().expect("a device")) + late;
                let found = polls.take(now);
                prop_assert!(found != 0 && found >> (periods.len() - 1) <= 1);
                for (device, looks) in looks.iter_mut().enumerate() {
                    if found >> device & 1 != 0 {
                        looks.push(now);
                    }
                }
            }
            for (looks, period) in looks.iter().zip(&periods) {
                let numbers: Vec<u64> = looks.iter().map(|at| at / period).collect();
                prop_assert!(numbers.is_sorted_by(|one, other| one < other), "twice in a period");
                // Between two looks at all there are 39 ticks at most behind the time of the second.
                let gap = |pair: &[u64]| pair[1] - pair[0] < period + 40;
                prop_assert!(looks.windows(2).all(gap) && now - looks.last().unwrap_or(&0) < period + 40);
            }
        }
    }
}
