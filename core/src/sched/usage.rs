//! How a vCPU stands at a moment: what it may have of its pCPU, what it does, and what it has had.

use core::mem::offset_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::slot::State;
use super::{Account, Policy, Scheduler};

/// What a vCPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// It waits for an event.
    Blocked,
    /// It waits for the pCPU.
    Ready,
    /// Its budget or cap is used up: it waits for its next period, which begins in so many ticks.
    Throttled(u64),
    /// It has the pCPU.
    Running,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// What it may have.
    pub policy: Policy,
    /// What it does.
    pub run_state: RunState,
    /// What it has had, up to the moment.
    pub account: Account,
    /// Ticks since it came to its pCPU.
    pub passed: u64,
}

impl Scheduler {
    /// How a vCPU stands at `now`; `None` if there is none.
    #[inline(never)]
    pub fn usage(&mut self, slot: usize, now: u64) -> Option<Usage> {
        self.charge(now);
        let slot = self.slots.get(slot)?;
        let mut account = slot.account;
        let run_state = match slot.state {
            State::Absent => return None,
            State::Blocked => RunState::Blocked,
            State::Running => RunState::Running,
            State::Ready => {
                let waited = now.saturating_sub(slot.since);
                account.stolen = account.stolen.wrapping_add(waited);
                let until = slot.waits_until();
                until.map_or(RunState::Ready, |at| {
                    RunState::Throttled(at.saturating_sub(now))
                })
            }
        };
        Some(Usage {
            policy: slot.policy,
            run_state,
            account,
            passed: now.saturating_sub(account.since),
        })
    }
}

/// A [`Usage`] as words, for another pCPU to read.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UsageWords {
    /// 0 pinned, 1 server, 2 fair; then what belongs to it.
    policy: [u64; 4],
    /// 0 blocked, 1 ready, 2 running, 3 spent until the second word.
    run_state: [u64; 2],
    passed: u64,
    account: Account,
}

impl UsageWords {
    /// The word that is 0 if the vCPU has its pCPU to itself.
    pub const POLICY: usize = offset_of!(Self, policy) / 8;
    /// The word with the first two classes of waits.
    pub const WAITS: usize = (offset_of!(Self, account) + offset_of!(Account, waits)) / 8;

    /// The words of `standing`.
    pub const fn of(usage: &Usage) -> Self {
        Self {
            policy: match usage.policy {
                Policy::Pinned => [0; 4],
                Policy::Server { budget, period } => [1, budget, period, 0],
                Policy::Fair {
                    weight,
                    quota,
                    window,
                } => [2, weight as u64, quota, window],
            },
            run_state: match usage.run_state {
                RunState::Blocked => [0, 0],
                RunState::Ready => [1, 0],
                RunState::Running => [2, 0],
                RunState::Throttled(until) => [3, until],
            },
            passed: usage.passed,
            account: usage.account,
        }
    }

    /// What they were made from.
    pub const fn usage(&self) -> Usage {
        Usage {
            policy: match self.policy {
                [1, budget, period, _] => Policy::Server { budget, period },
                [2, weight, quota, window] => Policy::Fair {
                    weight: weight as u16,
                    quota,
                    window,
                },
                _ => Policy::Pinned,
            },
            run_state: match self.run_state {
                [1, _] => RunState::Ready,
                [2, _] => RunState::Running,
                [3, until] => RunState::Throttled(until),
                _ => RunState::Blocked,
            },
            passed: self.passed,
            account: self.account,
        }
    }
}
