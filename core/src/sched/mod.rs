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
pub mod balance;
pub mod bound;
pub mod fair;
pub mod places;
pub mod server;
mod slot;
mod standing;
mod travel;
mod wanted;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use account::Account;
pub use places::{Places, Siblings};
pub use slot::Policy;
pub use standing::{Doing, Standing, StandingWords};
pub use travel::{Traveller, Usage};
pub use wanted::{Change, Refusal, Wanted};

use fair::Fair;
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
    /// WFI of this vCPU must be seen: its sleep is not time that it has had, which matters to others of the pCPU and to its own budget.
    pub trap_wfi: bool,
    /// WFE of this vCPU must be seen: another one is ready, perhaps the one that holds what it waits for. Not that of a
    /// server, whose time it is.
    pub trap_wfe: bool,
}

/// A set of slots, a bit for each.
type Set = u32;

/// Its members, the lower first.
fn members(set: Set) -> impl Iterator<Item = usize> {
    let mut rest = set;
    core::iter::from_fn(move || {
        let slot = rest.trailing_zeros() as usize;
        rest &= rest.wrapping_sub(1);
        (slot < SLOTS).then_some(slot)
    })
}

/// The set with nothing but a slot.
const fn only(slot: usize) -> Set {
    1u32.wrapping_shl(slot as u32)
}

/// In the set of vCPUs that are there: others may come, behind all slots.
const VISITORS: Set = 1 << 31;
const _: () = assert!(SLOTS < Set::BITS as usize);

/// The vCPUs of a pCPU. What is asked at each turn is kept as sets, so that slots which have no part in it cost nothing.
#[derive(Debug)]
pub struct Scheduler {
    slots: [Slot; SLOTS],
    /// There is a vCPU; with [`VISITORS`] perhaps another one soon.
    present: Set,
    /// Ready, or the current one; but not one that is to leave for another pCPU.
    awake: Set,
    /// Of [`Policy::Fair`].
    fair: Set,
    /// With a budget or a cap.
    metered: Set,
    /// Whose turn it is.
    current: Option<usize>,
    /// Up to when time has been charged.
    charged: u64,
    /// The current vCPU spins: another one goes first, once.
    passes: bool,
    /// Start of the turn of the current vCPU.
    began: u64,
    /// End of the slice of the current vCPU, if others wait for it.
    ends: u64,
    /// Weight of all that are awake and fair.
    load: u32,
    weights: Fair,
}

impl Scheduler {
    /// No vCPUs. `round` is the time in which each fair vCPU that is always ready runs once, in ticks.
    pub const fn new(round: u64) -> Self {
        Self {
            slots: [const { Slot::absent() }; SLOTS],
            present: 0,
            awake: 0,
            fair: 0,
            metered: 0,
            current: None,
            charged: 0,
            passes: false,
            began: 0,
            ends: u64::MAX,
            load: 0,
            weights: Fair::new(round),
        }
    }

    /// Gives a slot to a vCPU that is blocked. `group` is its VM.
    pub fn add(&mut self, slot: usize, policy: Policy, group: u16, now: u64) {
        self.settle(now);
        let floor = self.weights.floor();
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Slot::new(policy, group, now, floor);
            self.sort(slot);
        }
    }

    /// Takes a vCPU off this pCPU, with what it has had. The caller takes it from the hardware if it runs.
    pub fn remove(&mut self, slot: usize, now: u64) -> Option<Account> {
        self.settle(now);
        self.drop_current(slot);
        let place = self.slots.get_mut(slot)?;
        let had = (place.state != State::Absent).then_some(place.account)?;
        *place = Slot::absent();
        self.sort(slot);
        Some(had)
    }

    /// Gives a vCPU another policy. What it has used of the old one counts.
    pub fn change(&mut self, slot: usize, policy: Policy, now: u64) {
        self.settle(now);
        let floor = self.weights.floor();
        if let Some(place) = self.slots.get_mut(slot)
            && place.state != State::Absent
        {
            place.change(policy, now, floor);
            self.sort(slot);
        }
    }

    /// A vCPU has something to do. `true` if it goes before the one that runs: ask [`Self::next`].
    pub fn wake(&mut self, slot: usize, now: u64) -> bool {
        self.settle(now);
        let floor = self.weights.floor();
        let round = self.weights.round();
        let Some(place) = self.slots.get_mut(slot) else {
            return false;
        };
        if place.state != State::Blocked {
            return false;
        }
        place.wake(now, floor, round);
        self.awake |= only(slot);
        self.weigh();
        match self.current {
            None => true,
            Some(current) => self.goes_before(slot, current),
        }
    }

    /// The current vCPU has nothing to do until [`Self::wake`].
    pub fn block(&mut self, now: u64) {
        self.settle(now);
        if let Some(current) = self.current.take()
            && let Some(place) = self.slots.get_mut(current)
        {
            place.enter(State::Blocked, now);
            self.awake &= !only(current);
            self.weigh();
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
        for slot in members(self.metered) {
            if let Some(place) = self.slots.get_mut(slot) {
                place.refill(now);
            }
        }
        let able = self.able();
        let passing = self
            .current
            .filter(|slot| self.passes && self.fair & only(*slot) != 0);
        self.passes = false;
        let is_over = now >= self.ends;
        let chosen = self.choose(able, passing, now);
        if is_over || chosen != self.current {
            self.ends = u64::MAX;
        }
        if chosen != self.current {
            if let Some(place) = self.current.and_then(|slot| self.slots.get_mut(slot)) {
                place.enter(State::Ready, now);
            }
            if let Some(place) = chosen.and_then(|slot| self.slots.get_mut(slot)) {
                place.start(now);
            }
            self.current = chosen;
            self.began = now;
        }
        self.turn(able, now)
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
    pub const fn load(&self) -> u32 {
        self.load
    }

    fn weigh(&mut self) {
        self.load = self
            .of(self.awake & self.fair)
            .fold(0u32, |sum, slot| sum.wrapping_add(slot.weight()));
    }

    /// The slots of a set.
    fn of(&self, set: Set) -> impl Iterator<Item = &Slot> {
        members(set).filter_map(|slot| self.slots.get(slot))
    }

    /// Puts a slot that has changed into the sets in which it belongs.
    fn sort(&mut self, slot: usize) {
        let Some(place) = self.slots.get(slot) else {
            return;
        };
        let there = place.state != State::Absent;
        for (set, belongs) in [
            (&mut self.present, there),
            (&mut self.awake, place.is_awake()),
            (&mut self.fair, there && place.is_fair()),
            (&mut self.metered, there && place.is_metered()),
        ] {
            *set = *set & !only(slot) | if belongs { only(slot) } else { 0 };
        }
        self.weigh();
    }

    /// Those that are awake and have something left of what they may use.
    fn able(&self) -> Set {
        let mut able = self.awake;
        for slot in members(self.awake & self.metered) {
            if !self.slots.get(slot).is_some_and(Slot::may_run) {
                able &= !only(slot);
            }
        }
        able
    }

    /// Charges the time since the last charge to whom it belongs.
    fn charge(&mut self, now: u64) {
        let spent = now.saturating_sub(self.charged);
        self.charged = self.charged.max(now);
        if let Some(place) = self.current.and_then(|slot| self.slots.get_mut(slot)) {
            place.charge(spent);
        }
    }

    /// Charges, before it changes who is awake or what somebody is: up to here virtual time went on for those who were.
    fn settle(&mut self, now: u64) {
        self.charge(now);
        let floor = self.weights.floor();
        let ahead = self
            .of(self.awake & self.fair)
            .map(|slot| slot.virtual_time.wrapping_sub(floor) as i64);
        if let Some(ahead) = ahead.min() {
            self.weights.advance(ahead);
        }
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
                this.lag(other) > self.weights.grain(self.load, this)
                    || self.awake == only(slot) | only(current)
            }
            _ => false,
        }
    }

    fn choose(&mut self, able: Set, passing: Option<usize>, now: u64) -> Option<usize> {
        let able = able & !passing.map_or(0, only);
        let rank = |slot: usize| {
            let rank = self.slots.get(slot)?.rank()?;
            Some((rank, self.current != Some(slot), slot))
        };
        if let Some((.., slot)) = members(able & !self.fair).filter_map(rank).min() {
            return Some(slot);
        }
        let able = able & self.fair;
        let current = self.current.map_or(0, only);
        let others = self.behind(able & !current);
        if let Some(last) = passing {
            let Some(first) = others else {
                // Nobody else: it goes on if it may.
                return self.slots.get(last)?.may_run().then_some(last);
            };
            return Some(self.sibling(last, able, first).unwrap_or(first));
        }
        if able & current != 0 && others.is_none_or(|first| self.goes_on(first, now)) {
            return self.current;
        }
        others
    }

    /// The current vCPU goes on beside `first`, of those that wait the one furthest behind: in its slice unless that one is
    /// half a slice behind it, and after its slice only if it is so itself. So a turn is one slice, and who has
    /// had a little too much or too little gives it back over the next turns.
    ///
    /// No turn is ended for another fair one before the shortest slice is over: else one that wakes as often as it can would leave the
    /// others nothing but switches.
    fn goes_on(&mut self, first: usize, now: u64) -> bool {
        let current = self.current.and_then(|slot| self.slots.get(slot));
        let (Some(current), Some(first)) = (current, self.slots.get(first)) else {
            return false;
        };
        if now >= self.ends {
            return current.lag(first) > self.weights.grain(self.load, current);
        }
        if first.lag(current) <= self.weights.grain(self.load, first) {
            return true;
        }
        let earliest = self.began.saturating_add(self.weights.shortest());
        self.ends = self.ends.min(earliest);
        now < earliest
    }

    /// The one that is furthest behind; of equals the lower number.
    fn behind(&self, set: Set) -> Option<usize> {
        let mut best = None;
        let mut least = 0;
        for n in members(set) {
            let time = self.slots.get(n)?.virtual_time;
            if best.is_none() || (time.wrapping_sub(least) as i64) < 0 {
                (best, least) = (Some(n), time);
            }
        }
        best
    }

    /// Of one that spins a sibling, unless `first` is a round behind it: siblings that pass to each other do not shut others
    /// out.
    fn sibling(&self, of: usize, able: Set, first: usize) -> Option<usize> {
        let (group, first) = (self.slots.get(of)?.group, self.slots.get(first)?);
        let mut siblings = 0;
        for (n, slot) in members(able).zip(self.of(able)) {
            if slot.group == group {
                siblings |= only(n);
            }
        }
        let n = self.behind(siblings)?;
        let round = self.weights.virtual_round(self.load);
        (first.lag(self.slots.get(n)?) <= round).then_some(n)
    }

    /// The turn of the current vCPU: when it ends, and what of it traps.
    fn turn(&mut self, able: Set, now: u64) -> Turn {
        let current = self.current.map_or(0, only);
        let refills = self.of(self.awake & !able & !current);
        let refill = refills.filter_map(Slot::waits_until).min();
        let refill = refill.unwrap_or(u64::MAX);
        let Some(slot) = self.current.and_then(|slot| self.slots.get(slot)) else {
            return Turn {
                slot: None,
                until: refill,
                trap_wfi: false,
                trap_wfe: false,
            };
        };
        let ready = able & !current != 0;
        let fair = self.fair & current != 0;
        let metered = self.metered & current != 0;
        let mut until = refill;
        if ready && fair {
            if self.ends == u64::MAX {
                let slice = self.weights.slice(self.load, slot);
                self.ends = now.saturating_add(slice);
            }
            until = until.min(self.ends);
        }
        if metered {
            until = until.min(now.saturating_add(slot.allowance()));
        }
        Turn {
            slot: self.current,
            until,
            trap_wfi: metered || self.present & !current != 0,
            trap_wfe: ready && fair,
        }
    }
}
