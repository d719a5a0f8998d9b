//! How a vCPU stands at a moment: what it may have of its pCPU, what it does, and what it has had.

use super::slot::State;
use super::{Account, Policy, Scheduler};

/// What a vCPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It waits for an event.
    Blocked,
    /// It waits for the pCPU.
    Ready,
    /// Its budget or cap is used up: it waits for its next period, which begins at this time (physical counter).
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
                slot.waits_until().map_or(Doing::Ready, Doing::Spent)
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
