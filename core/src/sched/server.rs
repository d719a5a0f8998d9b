//! Constant-bandwidth servers with hard reservations (Abeni and Buttazzo, 1998): a vCPU gets
//! `budget` ticks in each `period`. Among servers the earliest deadline goes first. A server whose
//! budget is used up waits until its deadline, where the next period begins; so a server that
//! overruns takes nothing from other vCPUs.
//!
//! After a sleep the rest of a budget keeps its old deadline only if that asks for no more than
//! budget/period of the time left; otherwise a new period begins with the wake-up. This rule bounds
//! the share of a server whatever its pattern of sleeping and waking, and gives a vCPU that sleeps
//! between its events its whole budget at once.

/// A server and its position in its period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// Ticks in each period.
    budget: u64,
    period: u64,
    /// Ticks left before the deadline; if negative, the overuse of the last turn, which the next
    /// period pays.
    left: i64,
    deadline: u64,
}

impl Server {
    /// A server that has not run. Its first period begins when it wakes.
    pub(super) const fn new(budget: u64, period: u64) -> Self {
        Self {
            budget,
            period,
            left: 0,
            deadline: 0,
        }
    }

    pub(super) fn deadline(&self) -> u64 {
        self.deadline
    }

    /// Ticks that the server may still run before its deadline.
    pub(super) fn left(&self) -> u64 {
        u64::try_from(self.left).unwrap_or(0)
    }

    pub(super) fn charge(&mut self, ticks: u64) {
        self.left = self.left.saturating_sub_unsigned(ticks);
    }

    /// Wakes the server: begins a new period if the rest of the budget does not fit the old
    /// deadline.
    pub(super) fn wake(&mut self, now: u64) {
        // left / (deadline - now) > budget / period, without division.
        let ahead = self.deadline.saturating_sub(now);
        let asks = u128::from(self.left()).wrapping_mul(self.period.into());
        let may = u128::from(ahead).wrapping_mul(self.budget.into());
        if ahead == 0 || (self.left > 0 && asks > may) {
            self.begin(now);
        }
    }

    /// Begins a period if the last one is over and its budget is used up.
    pub(super) fn refill(&mut self, now: u64) {
        if self.left <= 0 && now >= self.deadline {
            // If it was ready but could not run for a long time, the next period begins now: missed
            // periods are lost.
            let from = if now.saturating_sub(self.deadline) < self.period {
                self.deadline
            } else {
                now
            };
            self.begin(from);
        }
    }

    fn begin(&mut self, from: u64) {
        let debt = self.left.min(0);
        self.left = debt.saturating_add_unsigned(self.budget);
        self.deadline = from.saturating_add(self.period);
    }
}
