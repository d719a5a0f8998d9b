//! CPU time of one pCPU: which of its vCPUs runs next, and until when. One scheduler for each pCPU; nothing is
//! shared, and every operation is bounded by [`SLOTS`].
//!
//! What a vCPU may have is its [`Policy`]:
//!
//! * `Pinned`: the pCPU is its own. It runs whenever it can, no timer ends its turn.
//! * `Server`: a constant-bandwidth server ([`server`]): `budget` in each `period`, earliest deadline first, and
//!   ahead of every fair vCPU. When the budget is gone it waits for the next period. It harms itself only.
//! * `Fair`: what is left, by weight ([`fair`]), with a cap where one is wanted.
//!
//! A vCPU is off, blocked, ready, or the one that runs. Who wakes one asks [`Scheduler::wake`] whether the pCPU has
//! to look again; then, and at the end of each turn, [`Scheduler::next`] says who runs. Times are ticks of the
//! physical counter; work that EL2 does between two turns is charged to the vCPU whose turn it was.

pub mod account;
pub mod bound;
pub mod fair;
pub mod server;
mod slot;
mod standing;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use account::Account;
pub use slot::Policy;
pub use standing::{Doing, Standing};

use slot::{Slot, State};

/// vCPUs that one pCPU can have.
pub const SLOTS: usize = 8;

/// What the pCPU does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The vCPU that runs; `None`: all are blocked, off, or have to wait.
    pub slot: Option<usize>,
    /// When [`Scheduler::next`] has to be asked again, at the latest; [`u64::MAX`]: at the next wake-up.
    pub until: u64,
    /// WFI of this vCPU must be seen: another one, or its own budget, would gain by its sleep.
    pub trap_wfi: bool,
    /// WFE of this vCPU must be seen: another one is ready, perhaps the one that holds what it waits for. Not that of a
    /// server, whose time it is.
    pub trap_wfe: bool,
}

/// The vCPUs of a pCPU.
#[derive(Debug)]
pub struct Scheduler {
    slots: [Slot; SLOTS],
    /// Whose turn it is.
    current: Option<usize>,
    /// Up to when time has been charged.
    charged: u64,
    /// The current vCPU spins: another one goes first, once.
    passes: bool,
    fair: fair::Fair,
}

impl Scheduler {
    /// No vCPUs. `round` is the time in which each fair vCPU that is always ready runs once, in ticks.
    pub const fn new(round: u64) -> Self {
        Self {
            slots: [const { Slot::absent() }; SLOTS],
            current: None,
            charged: 0,
            passes: false,
            fair: fair::Fair::new(round),
        }
    }

    /// Gives a slot to a vCPU that is blocked. `group` is its VM.
    pub fn add(&mut self, slot: usize, policy: Policy, group: u16, now: u64) {
        self.charge(now);
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Slot::new(policy, group, now, self.fair.floor());
        }
    }

    /// Takes a vCPU off this pCPU, with what it has had. The caller takes it from the hardware if it runs.
    pub fn remove(&mut self, slot: usize, now: u64) -> Option<Account> {
        self.charge(now);
        self.drop_current(slot);
        let place = self.slots.get_mut(slot)?;
        let had = (place.state != State::Absent).then_some(place.account)?;
        *place = Slot::absent();
        Some(had)
    }

    /// Gives a vCPU another policy. What it has used of the old one counts.
    pub fn change(&mut self, slot: usize, policy: Policy, now: u64) {
        self.charge(now);
        let floor = self.fair.floor();
        if let Some(place) = self.slots.get_mut(slot)
            && place.state != State::Absent
        {
            place.change(policy, now, floor);
        }
    }

    /// A vCPU has something to do. `true` if it goes before the one that runs: ask [`Self::next`].
    pub fn wake(&mut self, slot: usize, now: u64) -> bool {
        self.charge(now);
        let floor = self.fair.floor();
        let round = self.fair.round();
        let Some(place) = self.slots.get_mut(slot) else {
            return false;
        };
        if place.state != State::Blocked {
            return false;
        }
        place.wake(now, floor, round);
        match self.current {
            None => true,
            Some(current) => self.goes_before(slot, current),
        }
    }

    /// The current vCPU has nothing to do until [`Self::wake`].
    pub fn block(&mut self, now: u64) {
        self.charge(now);
        if let Some(current) = self.current.take()
            && let Some(place) = self.slots.get_mut(current)
        {
            place.enter(State::Blocked, now);
        }
        self.passes = false;
    }

    /// The current vCPU spins: the next turn is another one's if one is ready, a sibling's first. Does nothing for a
    /// server.
    pub fn pass(&mut self) {
        self.passes = true;
    }

    /// Says who runs, and charges who ran.
    pub fn next(&mut self, now: u64) -> Turn {
        self.charge(now);
        for place in &mut self.slots {
            place.refill(now);
        }
        let passing = self
            .current
            .filter(|slot| self.passes && self.slots.get(*slot).is_some_and(Slot::is_fair));
        self.passes = false;
        let chosen = self.choose(passing);
        if chosen != self.current {
            if let Some(place) = self.current.and_then(|slot| self.slots.get_mut(slot)) {
                place.enter(State::Ready, now);
            }
            if let Some(place) = chosen.and_then(|slot| self.slots.get_mut(slot)) {
                place.start(now);
            }
            self.current = chosen;
        }
        self.turn(now)
    }

    /// Whose turn it is.
    pub fn current(&self) -> Option<usize> {
        self.current
    }

    /// What a vCPU has had so far, up to the last charge.
    pub fn account(&self, slot: usize) -> Option<&Account> {
        let place = self.slots.get(slot)?;
        (place.state != State::Absent).then_some(&place.account)
    }

    /// The policy of a vCPU.
    pub fn policy(&self, slot: usize) -> Option<Policy> {
        let place = self.slots.get(slot)?;
        (place.state != State::Absent).then_some(place.policy)
    }

    /// Weight of all fair vCPUs that are ready or run: what a load balancer compares.
    pub fn load(&self) -> u32 {
        fair::weight_of(&self.slots)
    }

    /// Charges the time since the last charge to whom it belongs.
    fn charge(&mut self, now: u64) {
        let spent = now.saturating_sub(self.charged);
        self.charged = self.charged.max(now);
        let Some(current) = self.current else { return };
        if let Some(place) = self.slots.get_mut(current) {
            place.charge(spent);
        }
        self.fair.advance(&self.slots);
    }

    fn drop_current(&mut self, slot: usize) {
        if self.current == Some(slot) {
            self.current = None;
            self.passes = false;
        }
    }

    /// Whether a vCPU that is ready would be chosen before the current one.
    fn goes_before(&self, slot: usize, current: usize) -> bool {
        let (Some(this), Some(other)) = (self.slots.get(slot), self.slots.get(current)) else {
            return false;
        };
        if !this.may_run() {
            // Its refill has to be in the timer.
            return true;
        }
        match (this.rank(), other.rank()) {
            (Some(this), Some(other)) if this != other => this < other,
            (Some(_), None) => true,
            (None, None) => {
                // The current one has a timer only if somebody was ready before.
                this.lag(other) > self.fair.grain(&self.slots, this) || self.alone(slot, current)
            }
            _ => false,
        }
    }

    /// No fair vCPU but these two is ready.
    fn alone(&self, slot: usize, current: usize) -> bool {
        self.slots
            .iter()
            .enumerate()
            .all(|(n, other)| n == slot || n == current || other.state != State::Ready)
    }

    fn choose(&self, passing: Option<usize>) -> Option<usize> {
        let able = |n: usize, slot: &Slot| passing != Some(n) && slot.may_run();
        let urgent = (0..SLOTS)
            .zip(&self.slots)
            .filter(|(n, slot)| able(*n, slot))
            .filter_map(|(n, slot)| Some((slot.rank()?, self.current != Some(n), n)))
            .min();
        if let Some((.., slot)) = urgent {
            return Some(slot);
        }
        let group = passing
            .and_then(|slot| self.slots.get(slot))
            .map(|slot| (slot.group, self.fair.virtual_round(&self.slots)));
        fair::choose(&self.slots, self.current, group, able)
            .or(passing.filter(|slot| self.slots.get(*slot).is_some_and(|slot| slot.may_run())))
    }

    /// The turn of the current vCPU: when it ends, and what of it traps.
    fn turn(&self, now: u64) -> Turn {
        let refill = self
            .slots
            .iter()
            .filter(|slot| slot.state == State::Ready)
            .filter_map(|slot| slot.waits_until())
            .min()
            .unwrap_or(u64::MAX);
        let Some(slot) = self.current.and_then(|slot| self.slots.get(slot)) else {
            return Turn {
                slot: None,
                until: refill,
                trap_wfi: false,
                trap_wfe: false,
            };
        };
        let ready = self
            .slots
            .iter()
            .any(|other| other.state == State::Ready && other.may_run());
        let slice = if ready && slot.is_fair() {
            now.saturating_add(self.fair.slice(&self.slots, slot))
        } else {
            u64::MAX
        };
        let allowance = now.saturating_add(slot.allowance());
        Turn {
            slot: self.current,
            until: slice.min(allowance).min(refill),
            trap_wfi: ready || slot.is_metered(),
            trap_wfe: ready && slot.is_fair(),
        }
    }
}
