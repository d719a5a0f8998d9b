//! Memory bandwidth of a vCPU: at most so many events of its CPU's counter (refills of a cache, accesses to the bus) in each period. Who has
//! had them waits for the next period, and what it has had too much, before the counter's interrupt came, is taken off there. What it does not use
//! is lost.
//!
//! Periods begin at multiples of their length on the physical counter, so that those of all pCPUs begin at the same time.

/// Budget of a vCPU, and what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    /// Events in each period; 0 for no budget.
    budget: u32,
    /// Length of a period, in ticks.
    period: u64,
    /// Events left in the period; negative for those that it has had too much.
    left: i64,
    /// End of the period.
    ends: u64,
}

impl Meter {
    /// Of a vCPU without a budget.
    pub const NONE: Self = Self::new(0, 1);

    /// A budget of `budget` events in each `period` ticks. Its first period begins with the first [`Self::refill`].
    pub const fn new(budget: u32, period: u64) -> Self {
        Self {
            budget,
            period,
            left: 0,
            ends: 0,
        }
    }

    /// Whether there is a budget.
    #[inline(always)]
    pub const fn exists(&self) -> bool {
        self.budget != 0
    }

    /// End of the period.
    pub const fn ends(&self) -> u64 {
        self.ends
    }

    /// Whether nothing is left in this period.
    pub const fn is_spent(&self) -> bool {
        self.left <= 0
    }

    /// The time from which on something is left again, if nothing is: so many periods pass as what was too much takes.
    pub fn waits_until(&self) -> u64 {
        let owed = self.left.min(0).unsigned_abs();
        let periods = owed.checked_div(self.budget.into()).unwrap_or(0);
        self.ends
            .saturating_add(self.period.saturating_mul(periods))
    }

    /// Begins the period in which `now` lies, if it is another one.
    pub fn refill(&mut self, now: u64) {
        let Some(past) = now.checked_sub(self.ends) else {
            return;
        };
        let periods = past.checked_div(self.period).unwrap_or(0).saturating_add(1);
        let new = i64::from(self.budget).saturating_mul(periods.min(1 << 31).cast_signed());
        self.left = self.left.saturating_add(new).min(self.budget.into());
        self.ends = self
            .ends
            .saturating_add(self.period.saturating_mul(periods));
    }

    /// Takes `events` off.
    pub const fn charge(&mut self, events: u32) {
        self.left = self.left.saturating_sub(events as i64);
    }

    /// Value of a counter of 32 bits that overflows when nothing is left; with the next event, if nothing is.
    pub const fn preset(&self) -> u32 {
        // At most the budget.
        let left = if self.is_spent() { 1 } else { self.left as u32 };
        0u32.wrapping_sub(left)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_budget_is_for_one_period_and_what_was_too_much_is_for_the_next() {
        let mut meter = Meter::new(100, 1_000);
        meter.refill(5_500);
        assert_eq!((meter.left, meter.ends()), (100, 6_000));
        meter.charge(130);
        assert!(meter.is_spent());
        meter.refill(5_999);
        assert_eq!((meter.left, meter.preset()), (-30, u32::MAX));
        meter.refill(6_000);
        assert_eq!(
            (meter.left, meter.ends(), meter.preset()),
            (70, 7_000, 0u32.wrapping_sub(70))
        );
        // Nothing is saved up.
        meter.refill(20_999);
        assert_eq!((meter.left, meter.ends()), (100, 21_000));
        // A debt of several periods is paid in as many.
        meter.charge(350);
        assert_eq!(meter.waits_until(), 23_000);
        meter.refill(22_999);
        assert!(meter.is_spent());
        assert_eq!(meter.waits_until(), 23_000);
        meter.refill(23_000);
        assert_eq!(meter.left, 50);
        // With nothing left and nothing owed the next period is enough; one that is owed as a whole takes another.
        meter.charge(50);
        assert_eq!(meter.waits_until(), 24_000);
        meter.charge(100);
        assert_eq!(meter.waits_until(), 25_000);
        meter.refill(24_000);
        assert!(meter.is_spent());
        meter.refill(25_000);
        assert_eq!(meter.left, 100);
    }

    #[test]
    fn a_counter_that_is_preset_overflows_with_the_last_event_of_the_budget() {
        for budget in [1, 2, 1 << 31, u32::MAX] {
            let mut meter = Meter::new(budget, 1_000);
            meter.refill(0);
            let counter = meter.preset();
            assert_eq!(counter.checked_add(budget - 1), Some(u32::MAX));
            meter.charge(counter.wrapping_add(budget).wrapping_sub(counter));
            assert!(meter.is_spent());
        }
        assert!(!Meter::NONE.exists());
    }

    proptest! {
        /// Whatever a vCPU does, it has in no row of periods more than its budgets of them, and what came too late to stop it once.
        #[test]
        fn no_row_of_periods_has_more_than_its_budgets(
            budget in 1u32..200,
            skid in 0u32..50,
            steps in prop::collection::vec((0u64..700, 0u32..400), 1..200),
        ) {
            const PERIOD: u64 = 1_000;
            let mut meter = Meter::new(budget, PERIOD);
            let mut now = 12_345;
            let mut had = std::vec::Vec::new();
            for (pause, wants) in steps {
                now += pause;
                meter.refill(now);
                if meter.is_spent() {
                    continue;
                }
                // The counter's interrupt comes a few events late.
                let may = 0u32.wrapping_sub(meter.preset()).saturating_add(skid);
                let events = wants.min(may);
                meter.charge(events);
                had.push((now / PERIOD, u64::from(events)));
            }
            for first in 0..had.len() {
                let mut sum = 0;
                for (period, events) in &had[first..] {
                    sum += events;
                    let periods = period - had[first].0 + 1;
                    prop_assert!(sum <= periods * u64::from(budget) + u64::from(skid));
                }
            }
        }
    }
}
