//! Schedulability of the servers of a pCPU: whether each gets its promise, whatever other vCPUs do.
//! The planner refuses a system that is not schedulable and prints these numbers.
//!
//! Servers are independent tasks of `budget` in each `period` under earliest-deadline-first, one of
//! which may be blocked once by code that cannot be interrupted. The test is sufficient (Baker,
//! 1991, for EDF): with the servers in order of their periods, for each `i`: blocking/period(i) +
//! the sum over all `j` up to `i` of need(j)/period(j) is at most 1. Each server pays for the
//! switch to it and the switch away from it: a job preempts at most once when it arrives, and once more each time
//! that it comes back from a hold. Where the
//! console is drained, that is one more task of the highest priority, which comes at most once more
//! than its rate in each period.

use super::SLOTS;

/// Overhead of EL2, in the unit of the promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Time from the exit that ends a turn to the first instruction of the next vCPU.
    pub switch: u64,
    /// Longest time for which EL2 does not take interrupts.
    pub longest: u64,
    /// Time from one turn of the console's drain on this pCPU to the next; 0 if another pCPU drains
    /// it.
    pub drain: u64,
}

impl Costs {
    /// Figures of this build in nanoseconds, at one instruction a nanosecond, as on the board on
    /// which figures are taken (`lab/budgets.toml`). EL2 and the planner check a plan with them.
    ///
    /// `switch`: the ceiling of `server_switch`, the more expensive one. `longest`: the ceiling of
    /// `longest_exit`.
    pub const OF_BUILD: Self = Self {
        switch: 850,
        longest: 5_000,
        drain: 0,
    };

    /// The same on a pCPU that drains the console, if `drains`; `registers`: one to which vCPUs may come that have more than most to save
    /// and restore ([`REGISTERS_NS`]).
    pub const fn on(self, drains: bool, registers: bool) -> Self {
        let drain = if drains { DRAIN_NS } else { 0 };
        let more = if registers { REGISTERS_NS } else { 0 };
        Self {
            switch: self.switch.saturating_add(more),
            drain,
            ..self
        }
    }
}

/// What a switch takes longer, in nanoseconds, from a vCPU that has performance monitors, debug registers and a budget of events to another
/// such: the counters of both ([`Pmu`](crate::cpu::pmu::Pmu)), 140 instructions for each of nine, breakpoints and watchpoints, 250, and a
/// message.
pub const REGISTERS_NS: u64 = 2_000;

/// Time from one turn of the console's drain to the next where servers share the pCPU, in
/// nanoseconds. A UART at 115,200 baud sends fewer bytes in it than a turn gives.
pub const DRAIN_NS: u64 = 1_000_000;
/// Exits that a turn of the drain takes: the message that there is output, and the turn.
const DRAIN_EXITS: u64 = 2;

/// The budget and period of a server, in ticks or any other unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// CPU time in each period.
    pub budget: u64,
    /// Period of the server.
    pub period: u64,
    /// Period in which it is held at most once, because it has had something else than time ([`crate::bandwidth`]); 0: never.
    pub held: u64,
}

impl Promise {
    /// Number of holds that may end in a period.
    fn holds(&self) -> u64 {
        let periods = self.period.checked_div(self.held);
        periods.map_or(0, |periods| periods.saturating_add(1))
    }
}

/// Result of the test for one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Time of each period that it takes from the pCPU: its budget and two switches.
    pub need: u64,
    /// Millionths of the pCPU that it and the servers of shorter periods take, blocking included.
    /// At most 1,000,000 if the promise holds.
    pub load: u64,
    /// Longest time without any supply, after a wake-up at the worst moment.
    pub gap: u64,
}

impl Bound {
    /// Whether the promise holds.
    pub fn holds(&self) -> bool {
        self.load <= WHOLE
    }
}

/// A whole pCPU, in millionths.
pub const WHOLE: u64 = 1_000_000;

/// Computes the bound of server `which` among all servers of its pCPU.
pub fn bound(servers: &[Promise], which: usize, costs: Costs) -> Option<Bound> {
    let own = servers.get(which)?;
    let need = |server: &Promise| {
        let comes = server.holds().saturating_add(1);
        let switches = costs.switch.saturating_mul(comes.saturating_mul(2));
        server.budget.saturating_add(switches)
    };
    // Rounded up, so that no promise holds only because of rounding.
    let part = |ticks: u64, period: u64| match ticks.checked_mul(WHOLE) {
        Some(whole) => whole.div_ceil(period.max(1)),
        // Hours: in units of 2^20 ticks, of which the need has one more and the period one less.
        None => {
            let need = (ticks >> 20).saturating_add(1).saturating_mul(WHOLE);
            need.div_ceil((period >> 20).max(1))
        }
    };
    let up_to_own = servers
        .iter()
        .enumerate()
        .filter(|(n, server)| (server.period, *n) <= (own.period, which));
    let taken = up_to_own.fold(0u64, |sum, (_, server)| {
        sum.saturating_add(part(need(server), server.period))
    });
    let drain = costs.longest.saturating_mul(DRAIN_EXITS);
    let drained = match costs.drain {
        0 => 0,
        every => part(drain, every).saturating_add(part(drain, own.period)),
    };
    Some(Bound {
        need: need(own),
        load: taken
            .saturating_add(part(costs.longest, own.period))
            .saturating_add(drained),
        // In the worst case the budget is used at the start of one period and comes at the end of
        // the next.
        gap: own.period.saturating_sub(own.budget).saturating_mul(2),
    })
}

/// [`Bound::load`] of the server of a pCPU that has the least room; `None` if there are more
/// servers than a pCPU can have. Times in nanoseconds, costs [`Costs::OF_BUILD`]. `drains`: the pCPU
/// drains the console; `registers`: as in [`Costs::on`].
pub fn worst_load(
    servers: impl Iterator<Item = Promise>,
    drains: bool,
    registers: bool,
) -> Option<u64> {
    let none = Promise {
        budget: 0,
        period: 0,
        held: 0,
    };
    let mut all = [none; SLOTS];
    let mut count = 0_usize;
    for server in servers {
        *all.get_mut(count)? = server;
        count = count.wrapping_add(1);
    }
    let servers = all.get(..count).unwrap_or_default();
    let costs = Costs::OF_BUILD.on(drains, registers);
    (0..count).try_fold(0, |worst: u64, which| {
        Some(worst.max(bound(servers, which, costs)?.load))
    })
}

/// Ticks that a server which always wants more gets at least in any interval of this length, if its
/// promise holds.
pub fn supply(promise: Promise, interval: u64) -> u64 {
    let gap = promise.period.saturating_sub(promise.budget);
    let Some(after) = interval.checked_sub(gap) else {
        return 0;
    };
    let period = promise.period.max(1);
    let whole = (after / period).saturating_mul(promise.budget);
    whole.saturating_add((after % period).saturating_sub(gap))
}
