//! Scheduling state of one vCPU on a pCPU.

use core::num::NonZeroU64;

use super::account::Account;
use super::server::Server;

/// Virtual ticks for each tick of a vCPU with weight 1.
pub(super) const UNIT: u64 = 1 << 16;

/// Share of the pCPU that a vCPU may use. Times are in ticks, or in another unit where nothing runs
/// yet (a description's nanoseconds).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The whole pCPU. The plan gives such a pCPU no other vCPU.
    Pinned,
    /// `budget` in each `period`, ahead of all fair vCPUs.
    Server {
        /// CPU time in each period: at least 1, at most `period`.
        budget: u64,
        /// Time from one deadline to the next.
        period: u64,
    },
    /// A share, by weight, of the time that servers leave.
    Fair {
        /// Weight relative to the other fair vCPUs, at least 1.
        weight: u16,
        /// CPU time in each `period` at most (the cap); equal to `period` for no cap.
        quota: u64,
        /// Length of the period of the cap.
        period: u64,
    },
}

/// Scheduling state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The slot has no vCPU.
    Absent,
    /// The vCPU waits for an event.
    Blocked,
    /// The vCPU waits for the pCPU.
    Ready,
    /// The vCPU has the pCPU.
    Running,
}

/// A slot of the scheduler: the policy, state and account of one vCPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) policy: Policy,
    pub(super) state: State,
    pub(super) group: u16,
    pub(super) account: Account,
    /// Weight of a fair vCPU; 1 for other policies.
    weight: NonZeroU64,
    /// Cached length of a slice: (total weight for which it was computed, length in ticks). See
    /// [`super::fair::Fair::slice_of`].
    pub(super) slice: (u32, u64),
    /// [`super::fair::Fair::grain`] for the same total weight.
    pub(super) grain: i64,
    /// Virtual time of a fair vCPU, in [`UNIT`]s of a tick by weight.
    pub(super) virtual_time: u64,
    /// Time at which the vCPU entered its state.
    pub(super) since: u64,
    /// Whether the vCPU has been woken and has not run since.
    woken: bool,
    server: Server,
    /// Ticks used of a cap in the period that ends at `period_end`. Overuse counts in the next
    /// period.
    used: u64,
    period_end: u64,
}

impl Slot {
    pub(super) const fn absent() -> Self {
        Self {
            policy: Policy::Pinned,
            state: State::Absent,
            group: 0,
            account: Account::new(0),
            weight: NonZeroU64::MIN,
            slice: (0, 0),
            grain: 0,
            virtual_time: 0,
            since: 0,
            woken: false,
            server: Server::new(0, 0),
            used: 0,
            period_end: 0,
        }
    }

    pub(super) fn new(policy: Policy, group: u16, now: u64, floor: u64) -> Self {
        let mut slot = Self {
            state: State::Blocked,
            group,
            account: Account::new(now),
            ..Self::absent()
        };
        slot.change(policy, now, floor);
        slot
    }

    pub(super) fn change(&mut self, policy: Policy, now: u64, floor: u64) {
        let was_fair = self.is_fair() && self.state != State::Absent;
        self.policy = policy;
        self.weight = match policy {
            Policy::Fair { weight, .. } => {
                NonZeroU64::new(weight.into()).unwrap_or(NonZeroU64::MIN)
            }
            _ => NonZeroU64::MIN,
        };
        self.slice = (0, 0);
        self.since = if self.state == State::Blocked {
            now
        } else {
            self.since
        };
        match policy {
            Policy::Pinned => {}
            Policy::Server { budget, period } => {
                self.server = Server::new(budget, period);
                if self.is_awake() {
                    self.server.wake(now);
                }
            }
            Policy::Fair { period, .. } => {
                if !was_fair {
                    self.virtual_time = floor;
                }
                self.period_end = now.saturating_add(period);
            }
        }
    }

    pub(super) fn is_fair(&self) -> bool {
        matches!(self.policy, Policy::Fair { .. })
    }

    pub(super) fn is_awake(&self) -> bool {
        matches!(self.state, State::Ready | State::Running)
    }

    /// Whether the vCPU itself profits from its sleep being seen: it has a budget or a cap.
    pub(super) fn is_metered(&self) -> bool {
        match self.policy {
            Policy::Pinned => false,
            Policy::Server { .. } => true,
            Policy::Fair { quota, period, .. } => quota < period,
        }
    }

    pub(super) fn weight(&self) -> u32 {
        self.weight.get() as u32
    }

    /// Converts `ticks` to virtual time.
    pub(super) fn in_virtual_time(&self, ticks: u64) -> u64 {
        // A vCPU that has run alone for longer than this has no other to be compared with.
        ticks.min(1 << 40).wrapping_mul(UNIT) / self.weight
    }

    /// [`Self::in_virtual_time`] without the clamp, for `ticks` that are certainly less than 2^48.
    #[inline(always)]
    pub(super) fn in_little_virtual_time(&self, ticks: u64) -> u64 {
        ticks.wrapping_mul(UNIT) / self.weight
    }

    /// [`Self::charge`] of a fair vCPU without a cap, for `ticks` that are certainly less than 2^48.
    #[inline(always)]
    pub(super) fn charge_little(&mut self, ticks: u64) {
        self.account.ran = self.account.ran.wrapping_add(ticks);
        let more = self.in_little_virtual_time(ticks);
        self.virtual_time = self.virtual_time.wrapping_add(more);
    }

    /// [`Self::charge`] of a fair vCPU without a cap.
    #[inline(always)]
    pub(super) fn charge_fair(&mut self, ticks: u64) {
        self.account.ran = self.account.ran.wrapping_add(ticks);
        self.virtual_time = self.virtual_time.wrapping_add(self.in_virtual_time(ticks));
    }

    /// [`Self::wake`] of a fair vCPU without a cap.
    #[inline(always)]
    pub(super) fn wake_fair(&mut self, now: u64, floor: u64, round: u64) {
        self.enter(State::Ready, now);
        self.woken = true;
        self.catch_up(floor, round);
    }

    /// Returns the virtual time by which this vCPU is behind `other`.
    pub(super) fn lag(&self, other: &Slot) -> i64 {
        other.virtual_time.wrapping_sub(self.virtual_time) as i64
    }

    /// Sort key of vCPUs that go before all fair ones, the smallest first; `None` for a fair vCPU.
    pub(super) fn rank(&self) -> Option<u64> {
        match self.policy {
            Policy::Pinned => Some(0),
            Policy::Server { .. } => Some(self.server.deadline()),
            Policy::Fair { .. } => None,
        }
    }

    /// Whether the vCPU is awake and has budget or quota left.
    pub(super) fn may_run(&self) -> bool {
        self.is_awake() && self.waits_until().is_none()
    }

    /// Time of the next refill if the budget or quota is used up.
    pub(super) fn waits_until(&self) -> Option<u64> {
        match self.policy {
            Policy::Server { .. } if self.server.left() == 0 => Some(self.server.deadline()),
            Policy::Fair { quota, period, .. } if quota < period && self.used >= quota => {
                Some(self.period_end)
            }
            _ => None,
        }
    }

    /// Ticks that the vCPU may run before its budget or quota is used up.
    pub(super) fn allowance(&self) -> u64 {
        match self.policy {
            Policy::Server { .. } => self.server.left(),
            Policy::Fair { quota, period, .. } if quota < period => quota.saturating_sub(self.used),
            _ => u64::MAX,
        }
    }

    /// Charges `ticks` of run time.
    pub(super) fn charge(&mut self, ticks: u64) {
        self.account.ran = self.account.ran.wrapping_add(ticks);
        let overruns = match self.policy {
            Policy::Pinned => false,
            Policy::Server { .. } => {
                let could = self.server.left() > 0;
                self.server.charge(ticks);
                could && self.server.left() == 0
            }
            Policy::Fair { quota, period, .. } => {
                self.virtual_time = self.virtual_time.wrapping_add(self.in_virtual_time(ticks));
                let could = self.used < quota;
                if quota < period {
                    self.used = self.used.saturating_add(ticks);
                }
                could && self.used >= quota
            }
        };
        if overruns {
            self.account.overruns = self.account.overruns.wrapping_add(1);
        }
    }

    /// Refills the budget or the quota if its period is over.
    pub(super) fn refill(&mut self, now: u64) {
        match self.policy {
            Policy::Server { .. } if self.is_awake() => self.server.refill(now),
            Policy::Fair { quota, period, .. } if quota < period && now >= self.period_end => {
                let periods = now
                    .saturating_sub(self.period_end)
                    .checked_div(period)
                    .unwrap_or(0)
                    .saturating_add(1);
                self.used = self.used.saturating_sub(quota.saturating_mul(periods));
                self.period_end = self
                    .period_end
                    .saturating_add(period.saturating_mul(periods));
            }
            _ => {}
        }
    }

    /// Makes a blocked vCPU ready.
    pub(super) fn wake(&mut self, now: u64, floor: u64, round: u64) {
        self.enter(State::Ready, now);
        self.woken = true;
        match self.policy {
            Policy::Pinned => {}
            Policy::Server { .. } => self.server.wake(now),
            Policy::Fair { .. } => {
                self.catch_up(floor, round);
                self.refill(now);
            }
        }
    }

    /// Comes back from a hold ([`super::hold`]); `least` is the virtual time of the fair vCPU that is furthest behind, if there is one.
    pub(super) fn comes_back(&mut self, now: u64, least: Option<u64>, round: u64) {
        match self.policy {
            Policy::Pinned => {}
            Policy::Server { .. } => self.server.wake(now),
            Policy::Fair { .. } => {
                if let Some(least) = least {
                    self.catch_up(least, round);
                }
            }
        }
    }

    /// Forgets what a fair vCPU is behind `least` beyond half a round.
    fn catch_up(&mut self, least: u64, round: u64) {
        let earliest = least.wrapping_sub(self.in_little_virtual_time(round / 2));
        if (self.virtual_time.wrapping_sub(earliest) as i64) < 0 {
            self.virtual_time = earliest;
        }
    }

    /// Starts a turn: the vCPU gets the pCPU.
    #[inline(always)]
    pub(super) fn start(&mut self, now: u64) {
        let waited = now.saturating_sub(self.since);
        self.account.stolen = self.account.stolen.wrapping_add(waited);
        self.account.turn(waited, self.woken);
        self.woken = false;
        self.enter(State::Running, now);
    }

    /// Time since which the vCPU has been ready, and whether it has been woken and not run since;
    /// `None` if it is not ready.
    pub(super) fn since_woken(&self) -> Option<(u64, bool)> {
        (self.state == State::Ready).then_some((self.since, self.woken))
    }

    /// Restores what [`Self::since_woken`] returned before the vCPU moved to this pCPU.
    pub(super) fn waits_since(&mut self, (since, woken): (u64, bool)) {
        (self.since, self.woken) = (since, woken);
    }

    pub(super) fn enter(&mut self, state: State, now: u64) {
        self.state = state;
        self.since = now;
    }
}
