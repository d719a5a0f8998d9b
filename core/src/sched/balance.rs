//! Load balancing of fair vCPUs between pCPUs. It is separate from the schedulers, which know one
//! pCPU each: once in [`PERIOD_MS`] each pCPU measures the demand and the run time of its fair
//! vCPUs, publishes the sums, and compares them with those of the other pCPUs. The busier pCPU of a
//! pair moves at most one vCPU, to the pCPU with the least pressure, for one of three reasons:
//!
//! * **Load.** The greater of the two loads decreases by at least half of the load of the vCPU:
//!   a smaller gain is no reason to move, so no vCPU moves back.
//! * **Use.** The two pCPUs together are used more, by an eighth of a pCPU at least, although one
//!   of them has so little room beside its servers that a vCPU there gets less than on the other.
//!   The vCPUs that are owed the least take turns there.
//! * **Fairness.** The loads are as unequal afterwards as before, the other way round (three vCPUs
//!   on two pCPUs). The vCPUs that stay then get what those on the other pCPU had; the move is
//!   worth it once they have had less so far.
//!
//! A load is time wanted (run, or ready and not running) by weight, relative to the time that
//! servers leave of the pCPU. A vCPU that sleeps wants nothing and is not moved. Everything is
//! computed from measurements: no pCPU waits for another, and outdated numbers cause a move that
//! the next period corrects.

pub mod moves;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bulkhead_abi::plan::MAX_PCPUS;

use super::{Demand, SLOTS, Scheduler};

/// Milliseconds between two balancing passes: more than three rounds of the schedulers.
pub const PERIOD_MS: u64 = 20;
/// Milliseconds between measuring and choosing.
pub const PAUSE_MS: u64 = 1;
/// A whole pCPU, or the whole of a time: the denominator of shares. Eight vCPUs of the greatest
/// weight on each of eight pCPUs stay far below 64 bits, and a share of the smallest weight is
/// still some hundred.
const WHOLE: u64 = 1 << 20;
/// Limit of what a vCPU is owed or owes, in periods of the mean share, so that no more is saved up.
const MOST_OWED: i64 = 4;

/// A decision to move a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Slot of the vCPU.
    pub slot: usize,
    /// Index of the pCPU to which it moves.
    pub to: usize,
}

/// Sums over the fair vCPUs of a pCPU, as of its last pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct View {
    /// Time wanted, by weight, of [`WHOLE`].
    load: u64,
    /// Time wanted, without weight, of [`WHOLE`].
    wants: u64,
    /// Time that servers leave, of [`WHOLE`].
    room: u64,
    /// Run time, of [`WHOLE`].
    had: u64,
    /// Sum of what the vCPUs are owed, each times its load.
    owed: i64,
    /// Number of free slots.
    free: u32,
    /// pCPUs of the same kind may exchange vCPUs; 0 for a pCPU that takes none.
    kind: u64,
}

/// The published [`View`] of a pCPU, written by that pCPU and by a pCPU that has sent it a vCPU.
#[derive(Debug)]
struct Words {
    load: AtomicU64,
    wants: AtomicU64,
    room: AtomicU64,
    had: AtomicU64,
    owed: AtomicU64,
    free: AtomicU32,
    kind: AtomicU64,
}

/// The published views of all pCPUs. Each word is atomic by itself: a reader may see words of two
/// periods, and only uses them to choose.
#[derive(Debug)]
pub struct Loads([Words; MAX_PCPUS]);

impl Default for Loads {
    fn default() -> Self {
        Self::new()
    }
}

impl Loads {
    /// Views of pCPUs of which none takes part yet.
    pub const fn new() -> Self {
        Self(
            [const {
                Words {
                    load: AtomicU64::new(0),
                    wants: AtomicU64::new(0),
                    room: AtomicU64::new(0),
                    had: AtomicU64::new(0),
                    owed: AtomicU64::new(0),
                    free: AtomicU32::new(0),
                    kind: AtomicU64::new(0),
                }
            }; MAX_PCPUS],
        )
    }

    fn view(&self, pcpu: usize) -> View {
        self.0.get(pcpu).map_or_else(View::default, |words| View {
            kind: words.kind.load(Ordering::Acquire),
            load: words.load.load(Ordering::Relaxed),
            wants: words.wants.load(Ordering::Relaxed),
            room: words.room.load(Ordering::Relaxed),
            had: words.had.load(Ordering::Relaxed),
            owed: words.owed.load(Ordering::Relaxed) as i64,
            free: words.free.load(Ordering::Relaxed),
        })
    }

    fn publish(&self, pcpu: usize, view: &View) {
        if let Some(words) = self.0.get(pcpu) {
            words.load.store(view.load, Ordering::Relaxed);
            words.wants.store(view.wants, Ordering::Relaxed);
            words.room.store(view.room, Ordering::Relaxed);
            words.had.store(view.had, Ordering::Relaxed);
            words.owed.store(view.owed as u64, Ordering::Relaxed);
            words.free.store(view.free, Ordering::Relaxed);
            words.kind.store(view.kind, Ordering::Release);
        }
    }

    /// Number of free slots of a pCPU. Only the pCPU that may send it a vCPU now can take one.
    pub fn free(&self, pcpu: usize) -> u32 {
        self.view(pcpu).free
    }
}

/// Returns a number other than 0 for all words that a guest may read of a pCPU: the same for two pCPUs
/// between which a vCPU may move.
#[inline(always)]
pub fn kind<'a>(words: impl Iterator<Item = &'a u64>) -> u64 {
    // FNV-1a, a word at a time.
    words.fold(0xcbf2_9ce4_8422_2325, |hash: u64, word| {
        (hash ^ word).wrapping_mul(0x100_0000_01b3)
    }) | 1
}

/// Measurements of a vCPU that are kept from pass to pass. They move with the vCPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadTrack {
    /// pCPUs on which the vCPU may run, one bit for each; 0 if it must not move.
    pool: u32,
    /// Weight at the last measurement; 0 if the vCPU is not fair.
    weight: u32,
    /// Time wanted and run time between the last two measurements, of [`WHOLE`].
    wants: u32,
    had: u32,
    /// Time of the last measurement, and the run and wait time then. Only the low half of each,
    /// which is enough for differences.
    at: u32,
    ran: u32,
    waited: u32,
    /// Time by weight that was due to the vCPU and that it has not had, of [`WHOLE`].
    owed: i32,
    /// Whether the vCPU has just come, so that it is not moved again yet.
    rests: bool,
}

impl LoadTrack {
    /// A vCPU that may run on the pCPUs of `pool`.
    pub fn new(pool: u32, now: u64) -> Self {
        Self {
            pool,
            at: now as u32,
            ..Self::default()
        }
    }

    fn load(&self) -> u64 {
        u64::from(self.wants).saturating_mul(self.weight.into())
    }

    fn may_be_on(&self, pcpu: usize) -> bool {
        self.pool.wrapping_shr(pcpu as u32) & 1 != 0
    }

    /// Measures the demand of the last period, up to `now`.
    fn measure(&mut self, demand: Demand, now: u64) {
        let since = |now: u64, then: u32| u64::from((now as u32).wrapping_sub(then));
        let passed = since(now, self.at);
        let part = |ticks: u64| {
            let ticks = ticks.min(passed).saturating_mul(WHOLE);
            ticks.checked_div(passed).unwrap_or(0)
        };
        let ran = since(demand.ran, self.ran);
        let waited = since(demand.waited, self.waited);
        // Time beyond its cap is of no use to it.
        let cap = demand.quota.saturating_mul(WHOLE);
        let cap = cap.checked_div(demand.period).unwrap_or(0);
        let had = part(ran);
        let wants = part(ran.saturating_add(waited)).min(cap).max(had);
        (self.had, self.wants) = (had as u32, wants as u32);
        (self.weight, self.at) = (demand.weight, now as u32);
        (self.ran, self.waited) = (demand.ran as u32, demand.waited as u32);
    }

    /// Accounts for the period, in which each vCPU was due `mean` of the time that it wanted, by
    /// weight.
    fn settle(&mut self, mean: u64) {
        let due = mean.saturating_mul(self.wants.into()) / WHOLE;
        let had = self.had.checked_div(self.weight).unwrap_or(0);
        let most = (mean as i64).saturating_mul(MOST_OWED);
        let owed = i64::from(self.owed).saturating_add_unsigned(due);
        let owed = owed.saturating_sub_unsigned(had.into());
        self.owed = owed.clamp(most.wrapping_neg(), most) as i32;
        self.rests = false;
    }
}

/// The balancer of a pCPU.
#[derive(Debug)]
pub struct Balancer {
    own: usize,
    kind: u64,
    courses: [Option<LoadTrack>; SLOTS],
    room: u64,
}

/// Value of a move, the greater the better: the kind of reason, then the gain.
type Rank = (u8, i64);

impl Balancer {
    /// The balancer of pCPU `own`, which exchanges vCPUs with pCPUs of the same `kind`.
    pub const fn new(own: usize, kind: u64) -> Self {
        Self {
            own,
            kind,
            courses: [None; SLOTS],
            room: WHOLE,
        }
    }

    /// Adds a vCPU at the start. Nothing is published until the first pass.
    pub fn add(&mut self, slot: usize, load_track: LoadTrack) {
        if let Some(place) = self.courses.get_mut(slot) {
            *place = Some(load_track);
        }
    }

    /// Adds or removes a vCPU that has moved, and publishes the new sums.
    pub fn set(&mut self, slot: usize, load_track: Option<LoadTrack>, loads: &Loads) {
        if let Some(place) = self.courses.get_mut(slot) {
            *place = load_track.map(|load_track| LoadTrack {
                rests: true,
                ..load_track
            });
        }
        loads.publish(self.own, &self.view());
    }

    /// Changes the pool of a vCPU.
    pub fn allow(&mut self, slot: usize, pool: u32) {
        if let Some(Some(load_track)) = self.courses.get_mut(slot) {
            load_track.pool = pool;
        }
    }

    /// The measurements of a vCPU.
    pub fn load_track(&self, slot: usize) -> Option<LoadTrack> {
        self.courses.get(slot).copied().flatten()
    }

    /// Counts the load of a vCPU that has left at the pCPU to which it moves, until that pCPU has
    /// it.
    pub fn sent(&self, load: &LoadTrack, to: usize, loads: &Loads) {
        if let Some(words) = loads.0.get(to) {
            words.load.fetch_add(load.load(), Ordering::Relaxed);
            words.wants.fetch_add(load.wants.into(), Ordering::Relaxed);
        }
    }

    /// First half of a pass, once in a period: measures and publishes.
    #[inline(never)]
    pub fn measure<const HOLDS: bool>(
        &mut self,
        sched: &mut Scheduler<HOLDS>,
        loads: &Loads,
        now: u64,
    ) {
        let mut servers = 0u64;
        sched.charge(now);
        for (slot, place) in (0..SLOTS).zip(&mut self.courses) {
            let (Some(load_track), Some(demand)) = (place, sched.demand(slot, now)) else {
                continue;
            };
            load_track.measure(demand, now);
            if demand.weight == 0 {
                servers = servers.saturating_add(load_track.had.into());
            }
        }
        // A pCPU whose servers take all of its time is the worst choice, but its pressure must stay
        // finite.
        self.room = WHOLE.saturating_sub(servers).max(WHOLE / 64);
        loads.publish(self.own, &self.view());
    }

    /// Second half of a pass, [`PAUSE_MS`] later, when the other pCPUs have measured, too: returns
    /// the vCPU to move, if any.
    #[inline(never)]
    pub fn choose(&mut self, loads: &Loads) -> Option<Move> {
        let views: [View; MAX_PCPUS] = core::array::from_fn(|pcpu| loads.view(pcpu));
        let mut known = (0, 0);
        for load_track in self.courses.iter_mut().flatten() {
            if load_track.pool != known.0 {
                known = (load_track.pool, mean(&views, load_track.pool));
            }
            load_track.settle(known.1);
        }
        let here = self.view();
        loads.publish(self.own, &here);
        let locations: [Option<Place>; MAX_PCPUS] = core::array::from_fn(|pcpu| {
            let there = views.get(pcpu)?;
            let fits = pcpu != self.own && there.free > 0 && there.kind == here.kind;
            fits.then(|| Place::of(there))
        });
        let own = Place::of(&here);
        let mut best: Option<(Rank, Move)> = None;
        for (slot, load_track) in (0..SLOTS).zip(&self.courses) {
            let Some(load_track) = load_track else {
                continue;
            };
            // The pCPU with the least pressure; of equals the one whose vCPUs are owed the least.
            let mut least: Option<(Place, usize)> = None;
            for (to, place) in (0..MAX_PCPUS).zip(locations) {
                if let Some(place) = place
                    && load_track.may_be_on(to)
                    && least.is_none_or(|(other, _)| place < other)
                {
                    least = Some((place, to));
                }
            }
            let Some((place, to)) = least else { continue };
            if let Some(there) = views.get(to)
                && let Some(rank) = self.worth(load_track, (&here, own), (there, place))
                && best.is_none_or(|(other, _)| rank > other)
            {
                best = Some((rank, Move { slot, to }));
            }
        }
        best.map(|(_, chosen)| chosen)
    }

    /// Sums over the fair vCPUs of this pCPU.
    fn view(&self) -> View {
        let mut view = View {
            room: self.room,
            free: SLOTS as u32,
            kind: self.kind,
            ..View::default()
        };
        for load_track in self.courses.iter().flatten() {
            view.free = view.free.saturating_sub(1);
            if load_track.weight != 0 {
                view.load = view.load.saturating_add(load_track.load());
                view.wants = view.wants.saturating_add(load_track.wants.into());
                view.had = view.had.saturating_add(load_track.had.into());
                view.owed = view.owed.saturating_add(by_load(load_track));
            }
        }
        view
    }

    /// The value of moving a vCPU; `None` if it is not worth it.
    fn worth(
        &self,
        load_track: &LoadTrack,
        (here, own): (&View, Place),
        (there, place): (&View, Place),
    ) -> Option<Rank> {
        let load = load_track.load();
        let left = View {
            load: here.load.saturating_sub(load),
            wants: here.wants.saturating_sub(load_track.wants.into()),
            ..*here
        };
        let joined = View {
            load: there.load.saturating_add(load),
            wants: there.wants.saturating_add(load_track.wants.into()),
            ..*there
        };
        let before = own.pressure.max(place.pressure);
        let after = pressure(&left).max(pressure(&joined));
        let gain = (before as i64).wrapping_sub(after as i64);
        if !load_track.may_be_on(self.own) {
            return Some((3, gain));
        }
        if load == 0 || load_track.rests || place.pressure >= own.pressure {
            return None;
        }
        let half = (load / 2) as i64;
        if gain >= half {
            return Some((2, gain));
        }
        let more = (used(&left).saturating_add(used(&joined)))
            .saturating_sub(used(here).saturating_add(used(there)));
        if more >= WHOLE / 8 && i64::from(load_track.owed) <= own.owed {
            return Some((1, i64::from(load_track.owed).wrapping_neg()));
        }
        // The vCPUs that stay must have had less than those on the other pCPU.
        let stays = mean_owed(here.owed.saturating_sub(by_load(load_track)), left.load)?;
        let worth = there.load > 0 && stays.saturating_sub(place.owed) > self.grain(here);
        (gain >= half.wrapping_neg() && worth)
            .then_some((0, i64::from(load_track.owed).wrapping_neg()))
    }

    /// Difference in what is owed that is worth a move: three eighths of the mean run time by
    /// weight in a period.
    fn grain(&self, here: &View) -> i64 {
        let each = here.had.saturating_mul(WHOLE);
        let each = each.checked_div(here.load).unwrap_or(0) as i64;
        (each / 8).saturating_mul(3)
    }
}

/// A pCPU as the target of a move: the smaller the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    pressure: u64,
    /// Mean of what its vCPUs are owed.
    owed: i64,
}

impl Place {
    fn of(view: &View) -> Self {
        Self {
            pressure: pressure(view),
            owed: mean_owed(view.owed, view.load).unwrap_or(0),
        }
    }
}

/// Load relative to the time that servers leave.
fn pressure(view: &View) -> u64 {
    let load = view.load.saturating_mul(WHOLE);
    load.checked_div(view.room).unwrap_or(0)
}

/// Part of a pCPU that its fair vCPUs use.
fn used(view: &View) -> u64 {
    view.wants.min(view.room)
}

/// The time owed to a vCPU, times its load.
fn by_load(load_track: &LoadTrack) -> i64 {
    let load = i64::try_from(load_track.load() / (WHOLE / 1024)).unwrap_or(i64::MAX);
    i64::from(load_track.owed).saturating_mul(load) / 1024
}

fn mean_owed(owed: i64, load: u64) -> Option<i64> {
    let load = i64::try_from(load / (WHOLE / 1024)).ok()?;
    owed.saturating_mul(1024).checked_div(load)
}

/// Mean share that the vCPUs of a pool have had of the time that they wanted, by weight.
fn mean(views: &[View], pool: u32) -> u64 {
    let (mut had, mut load) = (0u64, 0u64);
    for (pcpu, view) in (0..MAX_PCPUS).zip(views) {
        if pool.wrapping_shr(pcpu as u32) & 1 != 0 {
            had = had.saturating_add(view.had);
            load = load.saturating_add(view.load);
        }
    }
    let mean = had.saturating_mul(WHOLE).checked_div(load);
    mean.unwrap_or(0).min(WHOLE)
}

#[cfg(test)]
mod tests;
