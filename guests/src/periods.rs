//! A control loop's periods: the virtual timer comes back without drift, and its interrupts are counted.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{gic, timer};

/// Periods of so many microseconds.
#[derive(Debug)]
pub struct Periods {
    microseconds: u64,
    seen: AtomicU64,
    lost: AtomicU64,
}

impl Periods {
    /// No period has been seen yet.
    pub const fn new(microseconds: u64) -> Self {
        Self {
            microseconds,
            seen: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// Begins with the first one.
    pub fn begin(&self) {
        timer::arm(timer::now() + timer::ticks(self.microseconds));
    }

    /// For the handler of interrupts, of which the timer's is the only one: counts the period that has ended when the handler was
    /// `entered`, and arms the timer for the end of the one that has begun.
    #[inline(always)]
    pub fn on_irq(&self, entered: u64) {
        let taken = gic::acknowledge();
        if taken.is_none() {
            return;
        }
        let (due, period) = (timer::compare(), timer::ticks(self.microseconds));
        let missed = (entered - due) / period;
        timer::arm(due + period * (missed + 1));
        self.lost.store(self.lost() + missed, Relaxed);
        self.seen.store(self.seen() + 1, Relaxed);
        gic::end(taken);
    }

    /// Periods whose end was seen in time.
    #[inline(always)]
    pub fn seen(&self) -> u64 {
        self.seen.load(Relaxed)
    }

    /// Periods that ended while an earlier one was still handled.
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }
}
