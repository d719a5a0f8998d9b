//! CPU time of one pCPU: which of its vCPUs runs next, and until when. There is one scheduler for
//! each pCPU; nothing is shared, and every operation is bounded by [`SLOTS`].
//!
//! The [`Policy`] of a vCPU says how much of the pCPU it may use:
//!
//! * `Pinned`: the vCPU has the pCPU to itself. It runs whenever it can; no timer ends its turn.
//! * `Server`: a constant-bandwidth server ([`server`]): `budget` in each `period`, earliest
//!   deadline first, and ahead of every fair vCPU. When the budget is used up it waits for the next
//!   period. A server that overruns harms only itself.
//! * `Fair`: a share, by weight, of the remaining time ([`fair`]), optionally with a cap.
//!
//! A vCPU is off, blocked, ready or running. [`Scheduler::wake`] returns whether the pCPU has to
//! reschedule; then, and at the end of each turn, [`Scheduler::next`] says which vCPU runs. Times
//! are ticks of the physical counter; work that EL2 does between two turns is charged to the vCPU
//! whose turn it was.

pub mod account;
pub mod balance;
pub mod bound;
pub mod fair;
mod fastpath;
mod hold;
mod limits;
mod migrate;
pub mod server;
mod set;
mod slot;
mod turn;
mod usage;
mod waiting;
mod wakes;

#[cfg(test)]
mod hold_tests;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use account::Account;
pub use fastpath::Woken;
pub use limits::{Change, Limits, Refusal};
pub use migrate::{Demand, MigratingSlot};
pub use slot::Policy;
pub use turn::Turn;
pub use usage::{RunState, Usage, UsageWords};
pub use wakes::Wakes;

use fair::Fair;
use hold::Held;
use set::{NOBODY, Set, members, only};
use slot::{Slot, State};
use waiting::Waiting;

/// Number of vCPUs that one pCPU can have.
pub const SLOTS: usize = 8;

/// A bit of [`Scheduler::present`], above all slots: other vCPUs may migrate to this pCPU.
const VISITORS: Set = 1 << 31;
const _: () = assert!(SLOTS < Set::BITS as usize);

/// The scheduler of a pCPU. What every turn needs is kept as sets, so that slots which are not
/// involved cost nothing. Without `HOLDS` nobody is held (`hold`), and nothing looks for that.
#[derive(Clone, Debug)]
pub struct Scheduler<const HOLDS: bool = true> {
    slots: [Slot; SLOTS],
    /// Slots that have a vCPU; with [`VISITORS`] if others may come.
    present: Set,
    /// Slots whose vCPU is ready or running, except one that is to leave for another pCPU.
    awake: Set,
    /// Slots with [`Policy::Fair`].
    fair: Set,
    /// Slots whose vCPU has a budget or a cap, or is held.
    metered: Set,
    /// The slot that runs, or [`NOBODY`].
    current: usize,
    /// Time up to which run time has been charged.
    charged: u64,
    /// Whether the current vCPU has yielded: the next turn goes to another one, once.
    passes: bool,
    /// End of the slice of the current vCPU, if others wait for it; [`u64::MAX`] if it is not set.
    ends: u64,
    /// Sum of the weights of all fair vCPUs that are awake.
    load: u32,
    /// All that wait for the current vCPU: the first of them, its heir, runs when its slice ends. Known
    /// only while all vCPUs that are awake are fair and have no cap; forgotten on every change that
    /// could affect it.
    waiting: Waiting,
    weights: Fair,
    held: Held,
}

impl<const HOLDS: bool> Scheduler<HOLDS> {
    /// A scheduler without vCPUs. `round` is the time, in ticks, in which each fair vCPU that is
    /// always ready runs once.
    pub const fn new(round: u64) -> Self {
        Self {
            slots: [const { Slot::absent() }; SLOTS],
            present: 0,
            awake: 0,
            fair: 0,
            metered: 0,
            current: NOBODY,
            charged: 0,
            passes: false,
            ends: u64::MAX,
            load: 0,
            waiting: Waiting::NOBODY,
            weights: Fair::new(round),
            held: Held::NOBODY,
        }
    }

    /// Gives a slot to a vCPU, which starts as blocked. `group` is its VM.
    pub fn add(&mut self, slot: usize, policy: Policy, group: u16, now: u64) {
        self.settle(now);
        let floor = self.weights.floor();
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Slot::new(policy, group, now, floor);
            self.sort(slot);
        }
    }

    /// Removes a vCPU from this pCPU and returns its account. If the vCPU is running, the caller
    /// takes its state off the hardware.
    pub fn remove(&mut self, slot: usize, now: u64) -> Option<Account> {
        self.settle(now);
        self.drop_current(slot);
        let place = self.slots.get_mut(slot)?;
        let had = (place.state != State::Absent).then_some(place.account)?;
        *place = Slot::absent();
        self.held.forget(slot);
        self.sort(slot);
        Some(had)
    }

    /// Changes the policy of a vCPU. Time already used still counts.
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

    /// Makes a blocked vCPU ready. Returns `true` if the caller has to call [`Self::next`]: the
    /// vCPU preempts the running one, or the turn of the running one needs an end now.
    pub fn wake(&mut self, slot: usize, now: u64) -> bool {
        self.wake_all(only(slot), now)
    }

    /// [`Self::wake`] for a set of slots, one bit for each.
    pub fn wake_all(&mut self, slots: Set, now: u64) -> bool {
        self.settle(now);
        let floor = self.weights.floor();
        let round = self.weights.round();
        let (mut woken, mut weight) = (0, 0u32);
        for slot in members(slots & !self.awake) {
            if let Some(place) = self.slots.get_mut(slot)
                && place.state == State::Blocked
            {
                place.wake(now, floor, round);
                woken |= only(slot);
                if place.is_fair() {
                    weight = weight.wrapping_add(place.weight());
                }
            }
        }
        if woken == 0 {
            return false;
        }
        self.waiting = Waiting::NOBODY;
        self.awake |= woken;
        self.load = self.load.wrapping_add(weight);
        // Where the decision is simple, it takes no longer than this would.
        self.current == NOBODY
            || self.is_simple()
            || members(woken).any(|slot| self.goes_before(slot, self.current))
    }

    /// Blocks the current vCPU until [`Self::wake`].
    pub fn block(&mut self, now: u64) {
        self.settle(now);
        let current = core::mem::replace(&mut self.current, NOBODY);
        if let Some(place) = self.slots.get_mut(current) {
            place.enter(State::Blocked, now);
            if self.awake & self.fair & only(current) != 0 {
                self.load = self.load.wrapping_sub(place.weight());
            }
            self.awake &= !only(current);
        }
        self.passes = false;
    }

    /// Whether the current vCPU is the only one that is awake: if it sleeps, nobody runs.
    #[inline(always)]
    pub const fn is_last(&self) -> bool {
        self.awake == only(self.current)
    }

    /// Yields the current vCPU, which spins: the next turn goes to another fair vCPU if one is
    /// ready, preferably one of the same VM. Has no effect for a server.
    pub fn yield_cpu(&mut self) {
        self.passes = true;
        self.waiting = Waiting::NOBODY;
    }

    /// Whether all vCPUs that are awake are fair and no vCPU has a budget or a cap, and nobody yields.
    #[inline(always)]
    const fn is_simple(&self) -> bool {
        self.metered | self.awake & !self.fair == 0 && !self.passes
    }

    /// Charges the current vCPU and chooses the one that runs next.
    pub fn next(&mut self, now: u64) -> Turn {
        self.charge(now);
        let is_fastpath = self.is_simple();
        let current = only(self.current);
        let (able, chosen, first) = if is_fastpath {
            self.sort_waiting(self.awake & !current);
            (self.awake, None, self.waiting.first())
        } else {
            self.waiting = Waiting::NOBODY;
            let (able, chosen) = self.choose(now);
            let first = self.behind(able & self.fair & !current);
            (able, chosen, first.unwrap_or(NOBODY))
        };
        let chosen = match chosen {
            Some(chosen) => chosen,
            None => self.choose_fair(first, able & self.fair, now),
        };
        if now >= self.ends || chosen != self.current {
            self.ends = u64::MAX;
        }
        if chosen != self.current {
            if let Some(place) = self.slots.get_mut(self.current) {
                place.enter(State::Ready, now);
            }
            if let Some(place) = self.slots.get_mut(chosen) {
                place.start(now);
            }
            if is_fastpath {
                self.waiting = self.waiting.rest();
                if self.awake & only(self.current) != 0 {
                    self.waiting = self.waiting.with(self.current, &self.slots);
                }
            }
            self.current = chosen;
        }
        self.turn(able, now)
    }

    /// The slot that has the pCPU.
    pub fn current(&self) -> Option<usize> {
        (self.current != NOBODY).then_some(self.current)
    }

    /// Sum of the weights of all fair vCPUs that are ready or running.
    pub const fn load(&self) -> u32 {
        self.load
    }

    fn weigh(&mut self) {
        self.load = self
            .of(self.awake & self.fair)
            .fold(0u32, |sum, slot| sum.wrapping_add(slot.weight()));
    }

    /// Iterates over the slots of a set.
    fn of(&self, set: Set) -> impl Iterator<Item = &Slot> {
        members(set).filter_map(|slot| self.slots.get(slot))
    }

    /// Updates the sets after a change to a slot.
    fn sort(&mut self, slot: usize) {
        self.waiting = Waiting::NOBODY;
        let Some(place) = self.slots.get(slot) else {
            return;
        };
        let there = place.state != State::Absent;
        let held = HOLDS && self.held.slots() & only(slot) != 0;
        for (set, belongs) in [
            (&mut self.present, there),
            (&mut self.awake, place.is_awake()),
            (&mut self.fair, there && place.is_fair()),
            (&mut self.metered, there && (place.is_metered() || held)),
        ] {
            *set = *set & !only(slot) | if belongs { only(slot) } else { 0 };
        }
        self.weigh();
    }

    /// The vCPUs that are awake, not held, and have budget or quota left.
    fn able(&self) -> Set {
        let mut able = self.awake;
        if HOLDS {
            able &= !self.held.slots();
        }
        for slot in members(self.awake & self.metered) {
            if !self.slots.get(slot).is_some_and(Slot::may_run) {
                able &= !only(slot);
            }
        }
        able
    }

    /// Charges the time since the last charge to the current vCPU.
    fn charge(&mut self, now: u64) {
        let Some(spent) = now.checked_sub(self.charged).filter(|spent| *spent != 0) else {
            return;
        };
        self.charged = now;
        if let Some(place) = self.slots.get_mut(self.current) {
            place.charge(spent);
        }
    }

    /// Charges the current vCPU and advances the floor. To be called before a change to the set of
    /// awake vCPUs or to a policy, because virtual time up to now passed for the old set.
    fn settle(&mut self, now: u64) {
        self.charge(now);
        let floor = self.weights.floor();
        // Of those that wait the first is the furthest behind, if they are in order.
        let set = match self.waiting {
            Waiting::NOBODY => self.awake & self.fair,
            waiting => self.awake & only(self.current) | only(waiting.first()),
        };
        let ahead = self
            .of(set)
            .map(|slot| slot.virtual_time.wrapping_sub(floor) as i64);
        if let Some(ahead) = ahead.min() {
            self.weights.advance(ahead);
        }
    }

    fn drop_current(&mut self, slot: usize) {
        if self.current == slot {
            self.current = NOBODY;
            self.passes = false;
        }
    }

    /// Whether a vCPU that is ready would be chosen before the current one.
    fn goes_before(&self, slot: usize, current: usize) -> bool {
        let (Some(this), Some(other)) = (self.slots.get(slot), self.slots.get(current)) else {
            return false;
        };
        if !this.may_run() {
            // `this` may not run yet, but the timer must be set for its refill.
            return true;
        }
        match (this.rank(), other.rank()) {
            (Some(this), Some(other)) if this != other => this < other,
            (Some(_), None) => true,
            (None, None) => {
                // The current vCPU has a slice timer only if another one was ready before.
                this.lag(other) > self.weights.grain(self.load, this)
                    || self.awake == only(slot) | only(current)
            }
            _ => false,
        }
    }

    /// Refills budgets and caps, and chooses unless that is left to [`Self::choose_fair`]. Returns the
    /// vCPUs that may run and the one that does.
    #[inline(never)]
    fn choose(&mut self, now: u64) -> (Set, Option<usize>) {
        if HOLDS && self.held.slots() != 0 {
            self.let_go(now);
        }
        for slot in members(self.metered) {
            if let Some(place) = self.slots.get_mut(slot) {
                place.refill(now);
            }
        }
        let able = self.able();
        let passes = core::mem::take(&mut self.passes) && self.fair & only(self.current) != 0;
        let passing = if passes { only(self.current) } else { 0 };
        let rank = |slot: usize| {
            let rank = self.slots.get(slot)?.rank()?;
            Some((rank, self.current != slot, slot))
        };
        if let Some((.., slot)) = members(able & !self.fair).filter_map(rank).min() {
            return (able, Some(slot));
        }
        if !passes {
            return (able, None);
        }
        let fair = able & self.fair & !passing;
        let chosen = match self.behind(fair) {
            Some(first) => self.sibling(self.current, fair, first).unwrap_or(first),
            // No other fair vCPU is able: the one that yielded goes on if it may.
            None if able & passing != 0 => self.current,
            None => NOBODY,
        };
        (able, Some(chosen))
    }

    /// Chooses among fair vCPUs that are able to run; `first` is the furthest behind of those that wait.
    #[inline(always)]
    fn choose_fair(&mut self, first: usize, able: Set, now: u64) -> usize {
        let runs = able & only(self.current) != 0;
        if first < SLOTS && (!runs || !self.goes_on(first, now)) {
            first
        } else if runs {
            self.current
        } else {
            NOBODY
        }
    }

    /// Sees to it that the order is known of those that wait, who are all fair.
    #[inline(always)]
    fn sort_waiting(&mut self, others: Set) {
        if self.waiting == Waiting::NOBODY && others != 0 {
            if others & others.wrapping_sub(1) == 0 {
                self.waiting = Waiting::only(others.trailing_zeros());
            } else {
                self.sort_waiting_anew(others);
            }
        }
    }

    #[inline(never)]
    fn sort_waiting_anew(&mut self, others: Set) {
        for slot in members(others) {
            self.waiting = self.waiting.with(slot, &self.slots);
        }
    }

    /// Whether the current vCPU goes on although `first` waits, which of the waiting vCPUs is the
    /// furthest behind. During its slice it goes on unless `first` is behind it by more than half a
    /// slice; after its slice it goes on only if it is itself that far behind `first`. So a turn is
    /// one slice, and a vCPU that has had a little too much or too little is corrected over the
    /// next turns.
    ///
    /// No turn is ended for another fair vCPU before the shortest slice is over: otherwise a vCPU
    /// that wakes as often as it can would leave the others nothing but switches.
    #[inline(always)]
    fn goes_on(&mut self, first: usize, now: u64) -> bool {
        let Some(&Slot {
            virtual_time,
            since,
            ..
        }) = self.slots.get(self.current)
        else {
            return false;
        };
        let Some(first) = self.slots.get_mut(first) else {
            return false;
        };
        let lag = virtual_time.wrapping_sub(first.virtual_time) as i64;
        if now >= self.ends {
            let over = lag.wrapping_neg();
            return over > 0
                && self
                    .slots
                    .get_mut(self.current)
                    .is_some_and(|current| over > self.weights.grain_of(self.load, current));
        }
        if lag <= self.weights.grain_of(self.load, first) {
            return true;
        }
        let earliest = since.saturating_add(self.weights.shortest());
        self.ends = self.ends.min(earliest);
        now < earliest
    }

    /// The slot of `set` that is furthest behind in virtual time; of equals the lowest number.
    #[inline(always)]
    fn behind(&self, set: Set) -> Option<usize> {
        let first = set.trailing_zeros() as usize;
        let rest = set & set.wrapping_sub(1);
        if rest == 0 {
            return (first < SLOTS).then_some(first);
        }
        self.furthest_behind(first, rest)
    }

    /// The slow path of [`Self::behind`]: `first` and `others`, all of which have higher numbers.
    #[inline(never)]
    fn furthest_behind(&self, first: usize, others: Set) -> Option<usize> {
        let mut best = first;
        let mut least = self.slots.get(first)?.virtual_time;
        for n in members(others) {
            let time = self.slots.get(n)?.virtual_time;
            if (time.wrapping_sub(least) as i64) < 0 {
                (best, least) = (n, time);
            }
        }
        Some(best)
    }

    /// The vCPU of the same VM to which a yield goes, unless `first` is more than a round behind
    /// it: siblings that yield to each other must not starve the others.
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

    /// Works out the turn of the current vCPU: when it ends, and which traps it needs.
    #[inline(always)]
    fn turn(&mut self, able: Set, now: u64) -> Turn {
        let current = only(self.current);
        let waiting = self.awake & !able & !current;
        let refill = if waiting == 0 {
            u64::MAX
        } else {
            self.next_refill(waiting)
        };
        let Some(slot) = self.slots.get_mut(self.current) else {
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
                let slice = self.weights.slice_of(self.load, slot);
                self.ends = now.saturating_add(slice);
            }
            until = until.min(self.ends);
        }
        if metered {
            until = until.min(now.saturating_add(slot.allowance()));
        }
        Turn {
            slot: Some(self.current),
            until,
            trap_wfi: metered || self.present & !current != 0,
            trap_wfe: ready && fair,
        }
    }
}
