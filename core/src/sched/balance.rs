//! Who moves to another pCPU. Apart from the schedulers, which know one pCPU each: once in a [`PERIOD_MS`] each pCPU measures
//! what its fair vCPUs have wanted and had, publishes the sums, and compares them with those of the others. The busier
//! one gives at most one vCPU away, to the one that is used least, for one of three reasons:
//!
//! * **Load.** The greater of the two loads becomes smaller by half of what the vCPU wants, at least: nobody moves for less, and so
//!   nobody moves back.
//! * **Use.** More of the two pCPUs is used, an eighth of one at least, though one of them is so small, because of its servers, that whoever
//!   is there has less than on the other. So those that are owed nothing take turns there.
//! * **Fairness.** The loads are as unequal afterwards as before, the other way round (three vCPUs on two pCPUs). Then those who
//!   stay get what those on the other pCPU had, and it is worth it once they have had less so far.
//!
//! A load is time wanted (ran, or ready and not running) by weight, against what servers leave of the pCPU. Who sleeps
//! wants nothing and is not moved. All of it is arithmetic on what was measured: no pCPU waits for another, and old numbers
//! give a move that the next period puts right.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bulkhead_abi::plan::MAX_PCPUS;

use super::{Demand, SLOTS, Scheduler};

/// Milliseconds between two looks: more than three rounds of the schedulers.
pub const PERIOD_MS: u64 = 20;
/// Milliseconds between measuring and choosing.
pub const PAUSE_MS: u64 = 1;
/// A whole pCPU, or all of the time: what shares are counted in. Eight vCPUs of the greatest weight on each of eight pCPUs stay
/// far below 64 bits, and a share of the least is still some hundred.
const WHOLE: u64 = 1 << 20;
/// Periods of the mean that a vCPU is owed at most, or owes: no more is saved up.
const MOST_OWED: i64 = 4;

/// A vCPU is to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Its slot.
    pub slot: usize,
    /// Index of the pCPU.
    pub to: usize,
}

/// Sums of a pCPU over its fair vCPUs, as at its last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct View {
    /// Time wanted by weight, in [`WHOLE`]s.
    load: u64,
    /// The same, not by weight.
    wants: u64,
    /// What servers leave, of [`WHOLE`].
    room: u64,
    /// Time had, of [`WHOLE`].
    had: u64,
    /// What they are owed, by load.
    owed: i64,
    /// Slots.
    free: u32,
    /// pCPUs of one kind may exchange vCPUs; 0 for one that takes none.
    kind: u64,
}

/// Words of a pCPU, written by it, and by who has sent it a vCPU.
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

/// What all pCPUs have published. Each word by itself: a look may see those of two periods, and only chooses by them.
#[derive(Debug)]
pub struct Loads([Words; MAX_PCPUS]);

impl Default for Loads {
    fn default() -> Self {
        Self::new()
    }
}

impl Loads {
    /// Nobody takes part.
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

    /// Slots that a pCPU has left. Only who may send it a vCPU now can take one.
    pub fn free(&self, pcpu: usize) -> u32 {
        self.view(pcpu).free
    }
}

/// What is remembered of a vCPU from look to look. It goes along when the vCPU moves.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadTrack {
    /// pCPUs on which it may be, a bit for each; 0: it stays.
    pool: u32,
    /// By the last measurement; 0 if it is not fair.
    weight: u32,
    /// Of the time between the last two measurements, of [`WHOLE`]: wanted, had.
    wants: u32,
    had: u32,
    /// When it was measured last, and what it had used then. Of all three the low half, which is enough for differences.
    at: u32,
    ran: u32,
    waited: u32,
    /// Time by weight that it was to have and has not had, of [`WHOLE`].
    owed: i32,
    /// It has just come, and does not go on yet.
    rests: bool,
}

impl LoadTrack {
    /// Of a vCPU that may be on the pCPUs of `pool`.
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

    /// Takes what it has used up to `now`.
    fn measure(&mut self, demand: Demand, now: u64) {
        let since = |now: u64, then: u32| u64::from((now as u32).wrapping_sub(then));
        let passed = since(now, self.at);
        let part = |ticks: u64| {
            let ticks = ticks.min(passed).saturating_mul(WHOLE);
            ticks.checked_div(passed).unwrap_or(0)
        };
        let ran = since(demand.ran, self.ran);
        let waited = since(demand.waited, self.waited);
        // No more than its cap can be of use to it.
        let cap = demand.quota.saturating_mul(WHOLE);
        let cap = cap.checked_div(demand.window).unwrap_or(0);
        let had = part(ran);
        let wants = part(ran.saturating_add(waited)).min(cap).max(had);
        (self.had, self.wants) = (had as u32, wants as u32);
        (self.weight, self.at) = (demand.weight, now as u32);
        (self.ran, self.waited) = (demand.ran as u32, demand.waited as u32);
    }

    /// Reckons up the period, in which each vCPU was to have `mean` of what it wanted, by weight.
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

/// How good a move is, the greater the better.
type Rank = (u8, i64);

impl Balancer {
    /// That of pCPU `own`, which exchanges vCPUs with those of the same `kind`.
    pub const fn new(own: usize, kind: u64) -> Self {
        Self {
            own,
            kind,
            courses: [None; SLOTS],
            room: WHOLE,
        }
    }

    /// There is a vCPU in a slot from the start. Others hear of this pCPU at its first look.
    pub fn add(&mut self, slot: usize, load_track: LoadTrack) {
        if let Some(place) = self.courses.get_mut(slot) {
            *place = Some(load_track);
        }
    }

    /// A vCPU has come to a slot, or left it: says so to the others.
    pub fn set(&mut self, slot: usize, load_track: Option<LoadTrack>, loads: &Loads) {
        if let Some(place) = self.courses.get_mut(slot) {
            *place = load_track.map(|load_track| LoadTrack {
                rests: true,
                ..load_track
            });
        }
        loads.publish(self.own, &self.view());
    }

    /// Another pool for a vCPU.
    pub fn allow(&mut self, slot: usize, pool: u32) {
        if let Some(Some(load_track)) = self.courses.get_mut(slot) {
            load_track.pool = pool;
        }
    }

    /// What is remembered of a vCPU.
    pub fn load_track(&self, slot: usize) -> Option<LoadTrack> {
        self.courses.get(slot).copied().flatten()
    }

    /// The vCPU of a move has left: until the other pCPU has it, its load counts there.
    pub fn sent(&self, load: &LoadTrack, to: usize, loads: &Loads) {
        if let Some(words) = loads.0.get(to) {
            words.load.fetch_add(load.load(), Ordering::Relaxed);
            words.wants.fetch_add(load.wants.into(), Ordering::Relaxed);
        }
    }

    /// The first half of a look, once in a period: measures and publishes.
    #[inline(never)]
    pub fn measure(&mut self, sched: &mut Scheduler, loads: &Loads, now: u64) {
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
        // A pCPU that servers take whole is no place for anybody, but not infinitely bad.
        self.room = WHOLE.saturating_sub(servers).max(WHOLE / 64);
        loads.publish(self.own, &self.view());
    }

    /// The second half, a little later, when the others have measured, too: says who is to move, if anybody.
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
            // Where there is most room, and of equals where those are who have had most.
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

    /// Sums over the fair vCPUs.
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

    /// What a move of a vCPU is worth; `None`: nothing.
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
        // Who stays has had less than who is there.
        let stays = mean_owed(here.owed.saturating_sub(by_load(load_track)), left.load)?;
        let worth = there.load > 0 && stays.saturating_sub(place.owed) > self.grain(here);
        (gain >= half.wrapping_neg() && worth)
            .then_some((0, i64::from(load_track.owed).wrapping_neg()))
    }

    /// A difference in what is owed that is worth a move: three eighths of what each has in a period.
    fn grain(&self, here: &View) -> i64 {
        let each = here.had.saturating_mul(WHOLE);
        let each = each.checked_div(here.load).unwrap_or(0) as i64;
        (each / 8).saturating_mul(3)
    }
}

/// A pCPU as a place to be: the less the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    pressure: u64,
    /// What its vCPUs are owed in the mean.
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

/// Load against what servers leave.
fn pressure(view: &View) -> u64 {
    let load = view.load.saturating_mul(WHOLE);
    load.checked_div(view.room).unwrap_or(0)
}

/// How much of a pCPU its fair vCPUs use.
fn used(view: &View) -> u64 {
    view.wants.min(view.room)
}

/// What a vCPU is owed, times its load.
fn by_load(load_track: &LoadTrack) -> i64 {
    let load = i64::try_from(load_track.load() / (WHOLE / 1024)).unwrap_or(i64::MAX);
    i64::from(load_track.owed).saturating_mul(load) / 1024
}

fn mean_owed(owed: i64, load: u64) -> Option<i64> {
    let load = i64::try_from(load / (WHOLE / 1024)).ok()?;
    owed.saturating_mul(1024).checked_div(load)
}

/// What each vCPU of a pool has had of what it wanted, by weight, in the mean.
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
