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
        let (before, at) = (self.soonest, at.unwrap_or(u64::MAX));
        let Some(place) = self.each.get_mut(purpose as usize) else {
            return false;
        };
        let old = core::mem::replace(place, at);
        if at <= before {
            self.soonest = at;
        } else if old == before {
            self.soonest = self.each.iter().fold(u64::MAX, |next, at| next.min(*at));
        }
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

    /// Takes all deadlines that have expired. What handles them may set one again that has expired already: that one comes next time.
    pub fn take(&mut self, now: u64) -> Due {
        let (mut due, mut soonest) = (0, u64::MAX);
        for (purpose, at) in self.each.iter_mut().enumerate() {
            if *at <= now {
                due |= 1u32.wrapping_shl(purpose as u32);
                *at = u64::MAX;
            }
            soonest = soonest.min(*at);
        }
        self.soonest = soonest;
        Due(due)
    }
}

/// Purposes whose deadlines have expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due(u32);

impl Due {
    /// Whether that of a purpose has.
    pub const fn has(self, purpose: Purpose) -> bool {
        self.0.wrapping_shr(purpose as u32) & 1 != 0
    }

    /// Whether that of one of several has.
    pub fn has_any<const N: usize>(self, purposes: [Purpose; N]) -> bool {
        purposes.into_iter().any(|purpose| self.has(purpose))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COUNT: usize = Purpose::COUNT;
    const ALL: [Purpose; COUNT] = [
        Purpose::PhysicalTimer,
        Purpose::Watchdog,
        Purpose::Alarm,
        Purpose::Flush,
        Purpose::Monitor,
        Purpose::Balance,
        Purpose::Doorbell,
    ];

    #[test]
    fn the_smallest_comes_next() {
        let mut deadlines = Deadlines::new();
        assert_eq!(deadlines.next(), None);
        assert!(deadlines.set(Purpose::Flush, Some(500)));
        assert!(!deadlines.set(Purpose::Alarm, Some(900)));
        assert!(deadlines.set(Purpose::Watchdog, Some(100)));
        assert_eq!(deadlines.next(), Some(100));
        assert_eq!(deadlines.take(99), Due(0));
        let due = deadlines.take(100);
        assert!(due.has(Purpose::Watchdog) && due.has_any([Purpose::Alarm, Purpose::Watchdog]));
        assert!(!due.has(Purpose::Alarm) && !due.has_any([Purpose::Alarm, Purpose::Flush]));
        assert_eq!(deadlines.take(100), Due(0));
        assert_eq!(deadlines.next(), Some(500));
        assert!(deadlines.set(Purpose::Flush, None));
        assert_eq!(deadlines.next(), Some(900));
    }

    #[test]
    fn every_purpose_is_served() {
        let mut deadlines = Deadlines::new();
        for purpose in ALL {
            deadlines.set(purpose, Some(1));
        }
        let due = deadlines.take(1);
        assert!(ALL.into_iter().all(|purpose| due.has(purpose)));
        assert_eq!(deadlines.next(), None);
    }

    proptest! {
        /// No deadline is forgotten, none comes early or twice, and the soonest is known, however they are set, moved and cleared.
        #[test]
        fn all_come_in_time(steps in prop::collection::vec((0..COUNT, prop::option::of(0u64..50), 0u64..9), 0..60)) {
            let mut deadlines = Deadlines::new();
            let mut model = [None; COUNT];
            let mut now = 0;
            for (n, after, step) in steps {
                let before = model.iter().flatten().min().copied();
                model[n] = after.map(|after| now + after);
                let soonest = model.iter().flatten().min().copied();
                prop_assert_eq!(deadlines.set(ALL[n], model[n]), soonest != before);
                prop_assert_eq!(deadlines.next(), soonest);
                now += step;
                prop_assert_eq!(deadlines.is_due(now), soonest.is_some_and(|at| at <= now));
                let due = deadlines.take(now);
                for (purpose, at) in ALL.into_iter().zip(&mut model) {
                    prop_assert_eq!(due.has(purpose), at.take_if(|at| *at <= now).is_some());
                }
                prop_assert_eq!(deadlines.next(), model.iter().flatten().min().copied());
            }
        }
    }
}
