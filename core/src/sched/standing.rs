//! How a vCPU stands at a moment: what it may have of its pCPU, what it does, and what it has had.

use core::mem::offset_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::slot::State;
use super::{Account, Policy, Scheduler};

/// What a vCPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It waits for an event.
    Blocked,
    /// It waits for the pCPU.
    Ready,
    /// Its budget or cap is used up: it waits for its next period, which begins in so many ticks.
    Spent(u64),
    /// It has the pCPU.
    Running,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// What it may have.
    pub policy: Policy,
    /// What it does.
    pub doing: Doing,
    /// What it has had, up to the moment.
    pub account: Account,
    /// Ticks since it came to its pCPU.
    pub passed: u64,
}

impl Scheduler {
    /// How a vCPU stands at `now`; `None` if there is none.
    #[inline(never)]
    pub fn standing(&mut self, slot: usize, now: u64) -> Option<Standing> {
        self.charge(now);
        let slot = self.slots.get(slot)?;
        let mut account = slot.account;
        let doing = match slot.state {
            State::Absent => return None,
            State::Blocked => Doing::Blocked,
            State::Running => Doing::Running,
            State::Ready => {
                let waited = now.saturating_sub(slot.since);
                account.stolen = account.stolen.wrapping_add(waited);
                let until = slot.waits_until();
                until.map_or(Doing::Ready, |at| Doing::Spent(at.saturating_sub(now)))
            }
        };
        Some(Standing {
            policy: slot.policy,
            doing,
            account,
            passed: now.saturating_sub(account.since),
        })
    }
}

/// A [`Standing`] as words, for another pCPU to read.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StandingWords {
    /// 0 pinned, 1 server, 2 fair; then what belongs to it.
    policy: [u64; 4],
    /// 0 blocked, 1 ready, 2 running, 3 spent until the second word.
    doing: [u64; 2],
    passed: u64,
    account: Account,
}

impl StandingWords {
    /// The word that is 0 if the vCPU has its pCPU to itself.
    pub const POLICY: usize = offset_of!(Self, policy) / 8;
    /// The word with the first two classes of waits.
    pub const WAITS: usize = (offset_of!(Self, account) + offset_of!(Account, waits)) / 8;

    /// The words of `standing`.
    pub const fn of(standing: &Standing) -> Self {
        Self {
            policy: match standing.policy {
                Policy::Pinned => [0; 4],
                Policy::Server { budget, period } => [1, budget, period, 0],
                Policy::Fair {
                    weight,
                    quota,
                    window,
                } => [2, weight as u64, quota, window],
            },
            doing: match standing.doing {
                Doing::Blocked => [0, 0],
                Doing::Ready => [1, 0],
                Doing::Running => [2, 0],
                Doing::Spent(until) => [3, until],
            },
            passed: standing.passed,
            account: standing.account,
        }
    }

    /// What they were made from.
    pub const fn standing(&self) -> Standing {
        Standing {
            policy: match self.policy {
                [1, budget, period, _] => Policy::Server { budget, period },
                [2, weight, quota, window] => Policy::Fair {
                    weight: weight as u16,
                    quota,
                    window,
                },
                _ => Policy::Pinned,
            },
            doing: match self.doing {
                [1, _] => Doing::Ready,
                [2, _] => Doing::Running,
                [3, until] => Doing::Spent(until),
                _ => Doing::Blocked,
            },
            passed: self.passed,
            account: self.account,
        }
    }
}
