//! The deadlines that share the one timer which EL2 has on a pCPU. Each purpose has one place, so
//! their number is fixed, and no guest can make EL2's timer fire more often than it asks for on its
//! own timers.

/// The purpose of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Purpose {
    /// Console: the time after which a partial line is flushed.
    Flush = 0,
    /// The emulated physical timer of the vCPU.
    PhysicalTimer = 1,
    /// The watchdog of the VM.
    Watchdog = 2,
    /// The alarm of the VM's real-time clock.
    Alarm = 3,
    /// The next sample of the monitor.
    Monitor = 4,
    /// The next pass of the load balancer.
    Balance = 5,
    /// The time at which a doorbell that the vCPU has rung too early may be heard.
    Doorbell = 6,
}

impl Purpose {
    /// The next look of a service thread at its polled devices. It has no clock of a VM, whose place is free: one more place would cost
    /// each vCPU some instructions whenever it sets a deadline.
    pub const POLL: Self = Self::Alarm;
    /// The end of the period in which the vCPU that runs has a budget of events: of a pCPU, which has no watchdog of a VM.
    pub const BANDWIDTH: Self = Self::Watchdog;
    /// Number of purposes.
    pub const COUNT: usize = 7;
    /// All purposes, in the order in which expired deadlines are handled.
    pub const ALL: [Self; Self::COUNT] = [
        Self::PhysicalTimer,
        Self::Watchdog,
        Self::Alarm,
        Self::Flush,
        Self::Monitor,
        Self::Balance,
        Self::Doorbell,
    ];
}

/// Deadlines by purpose, as values of the physical counter; `u64::MAX` is never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    each: [u64; Purpose::COUNT],
    /// The smallest deadline, which is read far more often than one is set.
    soonest: u64,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self::new()
    }
}

impl Deadlines {
    /// Deadlines of which none is set.
    pub const fn new() -> Self {
        Self {
            each: [u64::MAX; Purpose::COUNT],
            soonest: u64::MAX,
        }
    }

    /// Sets or clears the deadline of a purpose. Returns `true` if the earliest deadline has
    /// changed, so that the timer has to be programmed.
    pub fn set(&mut self, purpose: Purpose, at: Option<u64>) -> bool {
        let before = self.soonest;
        if let Some(place) = self.each.get_mut(purpose as usize) {
            *place = at.unwrap_or(u64::MAX);
        }
        self.soonest = self.each.iter().fold(u64::MAX, |next, at| next.min(*at));
        self.soonest != before
    }

    /// The time at which the timer has to fire, if at all.
    #[inline(always)]
    pub fn next(&self) -> Option<u64> {
        (self.soonest != u64::MAX).then_some(self.soonest)
    }

    /// Whether a deadline has expired.
    #[inline(always)]
    pub const fn is_due(&self, now: u64) -> bool {
        self.soonest <= now
    }

    /// Takes an expired deadline. If it is called until it returns `None`, each purpose is returned
    /// at most once, unless its handler sets a deadline that has expired already.
    pub fn take(&mut self, now: u64) -> Option<Purpose> {
        if !self.is_due(now) {
            return None;
        }
        let due = Purpose::ALL.into_iter().find(|purpose| {
            self.each
                .get(*purpose as usize)
                .is_some_and(|at| *at <= now)
        })?;
        self.set(due, None);
        Some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_smallest_comes_next() {
        let mut deadlines = Deadlines::new();
        assert_eq!(deadlines.next(), None);
        assert!(deadlines.set(Purpose::Flush, Some(500)));
        assert!(!deadlines.set(Purpose::Alarm, Some(900)));
        assert!(deadlines.set(Purpose::Watchdog, Some(100)));
        assert_eq!(deadlines.next(), Some(100));
        assert_eq!(deadlines.take(99), None);
        assert_eq!(deadlines.take(100), Some(Purpose::Watchdog));
        assert_eq!(deadlines.take(100), None);
        assert_eq!(deadlines.next(), Some(500));
        assert!(deadlines.set(Purpose::Flush, None));
        assert_eq!(deadlines.next(), Some(900));
    }

    #[test]
    fn every_purpose_is_served() {
        let mut deadlines = Deadlines::new();
        for purpose in Purpose::ALL {
            deadlines.set(purpose, Some(1));
        }
        let mut served = [false; Purpose::COUNT];
        while let Some(purpose) = deadlines.take(1) {
            served[purpose as usize] = true;
        }
        assert_eq!(served, [true; Purpose::COUNT]);
    }

    proptest! {
        /// Deadlines are handled in turn, none is forgotten, none comes early, and the loop ends.
        #[test]
        fn all_come_in_time(times in proptest::array::uniform7(0u64..1_000), step in 1u64..100) {
            let mut deadlines = Deadlines::new();
            for (purpose, at) in Purpose::ALL.into_iter().zip(times) {
                deadlines.set(purpose, Some(at));
            }
            let mut came = 0;
            let mut now = 0;
            while let Some(next) = deadlines.next() {
                now = now.max(next) + step;
                while let Some(purpose) = deadlines.take(now) {
                    let place = Purpose::ALL.iter().position(|other| *other == purpose);
                    prop_assert!(times[place.unwrap()] <= now);
                    came += 1;
                }
                prop_assert!(deadlines.next().is_none_or(|next| next > now));
            }
            prop_assert_eq!(came, Purpose::COUNT);
        }
    }
}
