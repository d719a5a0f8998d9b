//! Exponential backoff, which keeps a rule from going to and fro: a step that had to be taken back at once is tried again after twice the time of the last such
//! one. Thresholds that lie closer together than what a step changes, and measures that do not show what is to spare (there are no overruns
//! at a budget that just suffices), then cost a number of moves that grows with the logarithm of the time only.

use std::time::Duration;

use crate::rule::Side;

/// A step that was made, and may have to be taken back.
#[derive(Clone, Copy, Debug)]
struct Tried {
    at: Duration,
    /// The measure for which it was made.
    measure: Option<f64>,
}

/// The backoff of steps in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    tried: Option<Tried>,
    /// Steps that had to be taken back, one after the other.
    failures: u32,
    until: Duration,
    /// The measure of the last one.
    measure: Option<f64>,
}

/// A measure that is at most this part of the one that deceived is another load.
const PART: f64 = 0.75;

impl Backoff {
    /// A step was made.
    pub fn tried(&mut self, at: Duration, measure: Option<f64>) {
        self.tried = Some(Tried { at, measure });
    }

    /// A step the other way was made: if that is within `soon` of the one that was tried, that one has failed. `base`: how long it
    /// holds the first time.
    pub fn taken_back(&mut self, at: Duration, soon: Duration, base: Duration) {
        let Some(tried) = self.tried.take() else {
            return;
        };
        if at.saturating_sub(tried.at) > soon {
            self.failures = 0;
            return;
        }
        self.failures = self.failures.saturating_add(1);
        let factor = 1u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        self.until = at.saturating_add(base.saturating_mul(factor));
        self.measure = tried.measure;
    }

    /// Whether a step may not be tried now. A measure that is far on this side of the one that deceived lets it.
    pub fn holds(&self, at: Duration, measure: Option<f64>, side: Side) -> bool {
        let is_another_load = match (measure, self.measure, side) {
            (Some(now), Some(then), Side::Below) => now < then * PART,
            (Some(now), Some(then), Side::Above) => now * PART > then,
            _ => false,
        };
        at < self.until && !is_another_load
    }

    /// Until when it holds, if it does.
    pub fn until(&self, at: Duration) -> Option<Duration> {
        (at < self.until).then_some(self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_step_that_fails_again_and_again_is_tried_ever_later() {
        let mut backoff = Backoff::default();
        let mut waits = Vec::new();
        let mut at = s(0);
        for _ in 0..4 {
            backoff.tried(at, Some(0.0));
            at += s(2);
            backoff.taken_back(at, s(5), s(10));
            let until = backoff.until(at).expect("it holds");
            assert!(
                backoff.holds(until - s(1), Some(0.0), Side::Below)
                    && !backoff.holds(until, Some(0.0), Side::Below)
            );
            waits.push((until - at).as_secs());
            at = until;
        }
        assert_eq!(waits, [20, 40, 80, 160]);
        // One that lasts longer was right.
        backoff.tried(at, Some(0.0));
        backoff.taken_back(at + s(6), s(5), s(10));
        assert!(!backoff.holds(at + s(6), Some(0.0), Side::Below));
        backoff.tried(at, Some(0.0));
        backoff.taken_back(at + s(2), s(5), s(10));
        assert_eq!(backoff.until(at + s(2)), Some(at + s(22)), "from the begin");
    }

    #[test]
    fn another_load_does_not_wait() {
        let mut backoff = Backoff::default();
        backoff.tried(s(0), Some(0.2));
        backoff.taken_back(s(1), s(5), s(10));
        assert!(
            backoff.holds(s(2), Some(0.2), Side::Below)
                && backoff.holds(s(2), Some(0.16), Side::Below)
        );
        assert!(!backoff.holds(s(2), Some(0.1), Side::Below));
        assert!(backoff.holds(s(2), None, Side::Below));
        assert!(backoff.holds(s(2), Some(0.25), Side::Above));
        assert!(!backoff.holds(s(2), Some(0.3), Side::Above));
        // What was not tried cannot fail.
        let mut backoff = Backoff::default();
        backoff.taken_back(s(1), s(5), s(10));
        assert!(!backoff.holds(s(1), None, Side::Below));
    }
}
