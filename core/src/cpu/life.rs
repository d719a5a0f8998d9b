//! The lives of a VM: how one ends and is reported, and how the next one begins, among the threads
//! of the VM's vCPUs and the console (`docs/internals/locking.md`).
//!
//! The last vCPU that goes off settles the end ([`Life::settle`]): by the VM's policy, or by an
//! order. The thread that knows the reason prints it, and what follows waits for that: the boot
//! vCPU prepares the VM again, or all vCPUs print their statistics, and the last one that has done
//! so takes the VM down. So the reports of two lives do not mix, and nothing is said twice.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub use bulkhead_abi::control::Follows;
use bulkhead_abi::plan::{Crash, Vm as Row};

use super::power::{End, Ending, Phase, Power, Start};

/// The end is settled.
const SETTLED: u32 = 1;
/// The VM stays down; each of its vCPUs prints its statistics.
const REPORT: u32 = 2;
/// The reason of the end has been printed; statistics may follow.
const REPORTED: u32 = 4;
/// The boot vCPU has to prepare the VM.
const PREPARE: u32 = 8;
/// A vCPU has crashed the VM; its thread knows the reason.
const CRASHED: u32 = 16;

/// The end of a VM once it is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The reason that counts.
    pub end: End,
    /// The consequence.
    pub follows: Follows,
    /// With [`Follows::Retries`]: restarts so far in their period, this one included.
    pub count: u16,
}

impl Settled {
    /// Whether the VM starts again.
    pub const fn is_restart(self) -> bool {
        matches!(self.follows, Follows::Restarts | Follows::Retries)
    }

    const fn word(self) -> u32 {
        self.end as u32 | (self.follows as u32) << 8 | (self.count as u32) << 16
    }

    fn of(word: u32) -> Self {
        Self {
            end: End::of(word & 0xff),
            follows: match word >> 8 & 0xff {
                1 => Follows::Exhausted,
                2 => Follows::Tells,
                3 => Follows::Restarts,
                4 => Follows::Retries,
                _ => Follows::Stays,
            },
            count: (word >> 16) as u16,
        }
    }
}

/// Work of the thread of a vCPU that is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// None.
    Nothing,
    /// Print the report of the vCPU.
    Report,
    /// Prepare the VM, and let it run.
    Prepare,
    /// Start the vCPU, which another vCPU has switched on, or take it off again if the VM is being
    /// stopped.
    Enter(Start),
}

/// Consequence of a printed report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Printed {
    /// The threads of the VM's vCPUs have to look at their work.
    Work,
    /// Nothing yet.
    Nothing,
    /// The VM is down now.
    Down,
}

/// The lives of a VM. All zeros is its value before the first one.
#[derive(Debug)]
#[repr(C)]
pub struct Life {
    /// The power state: which vCPUs are on, and whether the VM runs.
    pub power: Power,
    crashes: Restarts,
    resets: Restarts,
    /// Bits: what is to be done, and what has been, about the end or the start of a life.
    work: AtomicU32,
    /// Number of vCPUs that have not yet printed their reports about the end of the VM.
    unsaid: AtomicU32,
    /// Number of times that the VM has been started.
    number: AtomicU32,
    /// The last end, as [`Settled::word`].
    settled: AtomicU32,
}

impl Default for Life {
    fn default() -> Self {
        Self::new()
    }
}

impl Life {
    /// A VM that has not been started.
    pub const fn new() -> Self {
        Self {
            power: Power::new(),
            crashes: Restarts::new(),
            resets: Restarts::new(),
            work: AtomicU32::new(0),
            unsaid: AtomicU32::new(0),
            number: AtomicU32::new(0),
            settled: AtomicU32::new(0),
        }
    }

    /// Starts a VM that is down; the boot vCPU must be notified. `Err`: it is not down.
    pub fn start(&self) -> Result<(), Phase> {
        self.power.start()?;
        // Everything about the last life has been printed, so nobody else changes this.
        self.work.store(PREPARE, Ordering::Release);
        Ok(())
    }

    /// Carries out an order to start the VM: one that is being stopped, or is asked to stop (`asks`: where VMs are), starts again when it
    /// has ended. `start` starts one that is down. `Ok(true)`: all vCPUs have to be notified. `Err`: nothing has changed, because of the
    /// phase that the VM is in. Orders come from one pCPU at a time.
    #[inline(always)]
    pub fn order_start(
        &self,
        asks: bool,
        start: impl FnOnce() -> Result<(), Phase>,
    ) -> Result<bool, Phase> {
        match self.power.phase() {
            Phase::Down => start().map(|()| true),
            Phase::Stopping(_) => self.power.stop(End::OrderedRestart),
            Phase::Asked(_) if asks => match self.power.again() {
                // It has ended meanwhile.
                Err(Phase::Stopping(_)) => self.power.stop(End::OrderedRestart),
                done => done.map(|()| false),
            },
            other => Err(other),
        }
    }

    /// The same for an order to restart the VM.
    #[inline(always)]
    pub fn order_restart(&self, start: impl FnOnce() -> Result<(), Phase>) -> Result<bool, Phase> {
        match self.power.stop(End::OrderedRestart) {
            Err(Phase::Down) => start().map(|()| true),
            done => done,
        }
    }

    /// Begins a life, about whose end nothing has been reported, of a VM of so many vCPUs. Called
    /// by the thread of the boot vCPU for [`Work::Prepare`]; also if the VM has been stopped
    /// meanwhile, so that this end is reported like any.
    pub fn begin(&self, vcpus: usize) {
        self.work.store(0, Ordering::Release);
        self.unsaid.store(vcpus as u32, Ordering::Release);
        self.number.fetch_add(1, Ordering::AcqRel);
    }

    /// Crashes the VM. `true`: the caller keeps the reason until it is settled what follows
    /// ([`Work::Report`]), and notifies all vCPUs. Called by the thread of a vCPU that is on.
    pub fn crash(&self) -> bool {
        let first = self.power.stop(End::Crash) == Ok(true);
        if first {
            self.work.fetch_or(CRASHED, Ordering::AcqRel);
        }
        first
    }

    /// Settles the end of the VM, by its row in the plan. `now` and `second` are a time and a
    /// second in ticks of a counter. `true` besides: the caller has to print the reason. Then all
    /// vCPUs have to be notified. Called by the last vCPU that has left; `None` if the VM is not
    /// being stopped.
    pub fn settle(&self, row: &Row, now: u64, second: u64) -> Option<(Settled, bool)> {
        loop {
            let ending = self.power.ending()?;
            let (settled, counter) = self.judge(ending, row, now, second);
            // An order that has come since then is not lost: it is judged next.
            if !self.power.settle(ending, settled.is_restart()) {
                continue;
            }
            if let Some(counter) = counter {
                counter.count(now, settled.count);
            }
            self.settled.store(settled.word(), Ordering::Release);
            let report = if settled.is_restart() { 0 } else { REPORT };
            let before = self.work.fetch_or(SETTLED | report, Ordering::AcqRel);
            return Some((settled, before & CRASHED == 0));
        }
    }

    /// Returns the consequence of an end, and the counter that counts it. However a guest ends that is asked to, the order
    /// holds, and no policy starts it again.
    fn judge(
        &self,
        ending: Ending,
        row: &Row,
        now: u64,
        second: u64,
    ) -> (Settled, Option<&Restarts>) {
        let end = ending.end;
        let settled = |follows, count| Settled {
            end,
            follows,
            count,
        };
        let crash = matches!(end, End::Crash | End::Watchdog);
        let tells = crash && row.crash == Crash::Notify as u16;
        let (counter, limit, seconds) = if let Some(order) = ending.asked {
            let follows = match order {
                End::OrderedRestart => Follows::Restarts,
                _ if tells => Follows::Tells,
                _ => Follows::Stays,
            };
            return (settled(follows, 0), None);
        } else if crash && row.crash == Crash::Restart as u16 {
            (&self.crashes, row.restarts, row.restart_seconds)
        } else if end == End::Reset && row.resets != 0 {
            (&self.resets, row.resets, row.reset_seconds)
        } else {
            let follows = match end {
                End::Reset | End::OrderedRestart => Follows::Restarts,
                _ if tells => Follows::Tells,
                _ => Follows::Stays,
            };
            return (settled(follows, 0), None);
        };
        let period = second.saturating_mul(u64::from(seconds));
        match counter.another(now, period, limit) {
            Some(count) => (settled(Follows::Retries, count), Some(counter)),
            None => (settled(Follows::Exhausted, 0), None),
        }
    }

    /// Whether a life has ended, and its end was settled.
    pub fn has_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire) != 0
    }

    /// The last end that was settled.
    pub fn settled(&self) -> Settled {
        Settled::of(self.settled.load(Ordering::Acquire))
    }

    /// The reason of the last end that was settled.
    pub fn last_end(&self) -> End {
        End::of(self.settled.load(Ordering::Acquire) & 0xff)
    }

    /// The work of the thread of vCPU `own`, which is off and has no report to print.
    /// `gives_reason`: it has to say why the VM ended, and has not yet. `reported`: the life whose
    /// end it has reported.
    pub fn work(&self, own: usize, gives_reason: bool, reported: u32) -> Work {
        let work = self.work.load(Ordering::Acquire);
        if work & SETTLED != 0 && gives_reason || work & REPORT != 0 && reported != self.number() {
            return Work::Report;
        }
        if work & PREPARE != 0 && own == 0 {
            return Work::Prepare;
        }
        self.power.arrive(own).map_or(Work::Nothing, Work::Enter)
    }

    /// Whether a report may be printed now: that which says why the VM ended (`gives_reason`) comes
    /// first.
    pub fn may_print(&self, gives_reason: bool) -> bool {
        gives_reason || self.work.load(Ordering::Acquire) & REPORTED != 0
    }

    /// Records that a report has been printed, which says why the VM ended (`gives_reason`) or not,
    /// and nothing more if it is `brief`, because the VM starts again.
    pub fn printed(&self, gives_reason: bool, brief: bool) -> Printed {
        let next = if brief { PREPARE } else { REPORTED };
        if gives_reason {
            self.work.fetch_or(next, Ordering::AcqRel);
        }
        if brief {
            return Printed::Work;
        }
        let last = self.unsaid.fetch_sub(1, Ordering::AcqRel) == 1;
        if last && self.power.down() {
            Printed::Down
        } else if gives_reason {
            Printed::Work
        } else {
            Printed::Nothing
        }
    }

    /// Number of the VM's current life, from 1.
    pub fn number(&self) -> u32 {
        self.number.load(Ordering::Acquire)
    }
}

/// Counter of the restarts of a VM: at most a number in a period, which starts with the first of
/// them. Only the vCPU that settles the end of the VM uses it.
#[derive(Debug)]
#[repr(C)]
struct Restarts {
    since: AtomicU64,
    number: AtomicU32,
}

impl Restarts {
    const fn new() -> Self {
        Self {
            since: AtomicU64::new(0),
            number: AtomicU32::new(0),
        }
    }

    /// The number in its period of one more restart at `now`, if `limit` in `period` (both times in
    /// ticks of a counter) allows it.
    fn another(&self, now: u64, period: u64, limit: u16) -> Option<u16> {
        let number = self.number.load(Ordering::Relaxed);
        let since = self.since.load(Ordering::Relaxed);
        let is_over = now.wrapping_sub(since) >= period;
        let before = if is_over { 0 } else { number as u16 };
        (before < limit).then_some(before.saturating_add(1))
    }

    /// Counts the restart at `now` that has this number.
    fn count(&self, now: u64, number: u16) {
        if number == 1 {
            self.since.store(now, Ordering::Relaxed);
        }
        self.number.store(u32::from(number), Ordering::Relaxed);
    }
}
