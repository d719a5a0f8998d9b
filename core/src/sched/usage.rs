//! A snapshot of a vCPU's scheduling: policy, run state and account.

use core::mem::offset_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::slot::State;
use super::{Account, Policy, Scheduler, only};

/// Scheduling state of a vCPU, as reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// The vCPU waits for an event.
    Blocked,
    /// The vCPU waits for the pCPU.
    Ready,
    /// Its budget or cap is used up: it waits for its next period, which begins in so many ticks.
    Throttled(u64),
    /// The vCPU has the pCPU.
    Running,
}

/// Policy, state and account of a vCPU at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Policy of the vCPU.
    pub policy: Policy,
    /// Run state of the vCPU.
    pub run_state: RunState,
    /// Account of the vCPU, up to the moment.
    pub account: Account,
    /// Ticks since it came to its pCPU.
    pub passed: u64,
}

impl<const HOLDS: bool> Scheduler<HOLDS> {
    /// The account of a vCPU, up to the last charge.
    pub fn account(&self, slot: usize) -> Option<&Account> {
        let place = self.slots.get(slot)?;
        (place.state != State::Absent).then_some(&place.account)
    }

    /// Ticks for which a vCPU was ready and did not run (stolen time).
    #[inline(always)]
    pub fn stolen(&self, slot: usize) -> u64 {
        self.slots.get(slot).map_or(0, |place| place.account.stolen)
    }

    /// The policy of a vCPU.
    pub fn policy(&self, slot: usize) -> Option<Policy> {
        let place = self.slots.get(slot)?;
        (place.state != State::Absent).then_some(place.policy)
    }

    /// Returns the usage of a vCPU at `now`; `None` if the slot is empty.
    #[inline(never)]
    pub fn usage(&mut self, slot: usize, now: u64) -> Option<Usage> {
        self.charge(now);
        let held = if HOLDS && self.held.slots() & only(slot) != 0 {
            Some(self.held.next(only(slot)))
        } else {
            None
        };
        let slot = self.slots.get(slot)?;
        let mut account = slot.account;
        let run_state = match slot.state {
            State::Absent => return None,
            State::Blocked => RunState::Blocked,
            State::Running => RunState::Running,
            State::Ready => {
                let waited = now.saturating_sub(slot.since);
                account.stolen = account.stolen.wrapping_add(waited);
                let until = slot.waits_until().max(held);
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
    /// 0 pinned, 1 server, 2 fair; then the parameters of the policy.
    policy: [u64; 4],
    /// 0 blocked, 1 ready, 2 running, 3 throttled for the ticks in the second word.
    run_state: [u64; 2],
    passed: u64,
    account: Account,
}

impl UsageWords {
    /// Index of the word that is 0 if the vCPU is pinned.
    pub const POLICY: usize = offset_of!(Self, policy) / 8;
    /// Indices of the words with the time since which it is counted, with that time's length, and with how long the vCPU ran of it.
    pub const LOOK: [usize; 3] = [
        offset_of!(Self, account) / 8 + offset_of!(Account, since) / 8,
        offset_of!(Self, passed) / 8,
        offset_of!(Self, account) / 8 + offset_of!(Account, ran) / 8,
    ];
    /// Index of the word with the first two classes of waits.
    pub const WAITS: usize = (offset_of!(Self, account) + offset_of!(Account, waits)) / 8;

    /// Encodes `usage`.
    pub const fn of(usage: &Usage) -> Self {
        Self {
            policy: match usage.policy {
                Policy::Pinned => [0; 4],
                Policy::Server { budget, period } => [1, budget, period, 0],
                Policy::Fair {
                    weight,
                    quota,
                    period,
                } => [2, weight as u64, quota, period],
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

    /// Decodes the words.
    pub const fn usage(&self) -> Usage {
        Usage {
            policy: match self.policy {
                [1, budget, period, _] => Policy::Server { budget, period },
                [2, weight, quota, period] => Policy::Fair {
                    weight: weight as u16,
                    quota,
                    period,
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
