//! Power states of a VM and its vCPUs: who may change what, without a lock (`docs/locking.md`).
//!
//! A VM is in a [`Phase`], a vCPU in a state; `online` counts the vCPUs that are not off. Who takes
//! the last one off ends the VM. Everything is atomic, because any pCPU of the VM, and the one that
//! serves the console, may ask for a change; each change is one compare-and-exchange, so that two that
//! race have one winner.
//!
//! States and calls: DEN0022E (PSCI), sections 5.4 to 5.8 and 6.6.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub use bulkhead_abi::call::End;
use bulkhead_abi::plan::MAX_VCPUS_PER_VM;

/// What a VM does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It has not been started, or it has ended and everything about it has been said.
    Down,
    /// Its boot pCPU is getting it ready.
    Starting,
    /// Its vCPUs may run.
    Running,
    /// Its vCPUs are leaving, for this reason.
    Stopping(End),
}

/// State of a vCPU, as AFFINITY_INFO tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// It does not run.
    Off = 0,
    /// Somebody is writing down where it shall start.
    Claimed = 1,
    /// It shall start; its pCPU has been told.
    Pending = 2,
    /// It runs.
    On = 3,
}

/// Why a vCPU cannot be switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such vCPU.
    Absent,
    /// It is on.
    On,
    /// Somebody else is switching it on.
    Pending,
}

#[derive(Debug)]
#[repr(C)]
struct Vcpu {
    state: AtomicU32,
    entry: AtomicU64,
    context: AtomicU64,
}

/// Where a vCPU starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// IPA.
    pub entry: u64,
    /// Its x0.
    pub context: u64,
}

/// See the module.
#[derive(Debug)]
#[repr(C)]
pub struct Power {
    phase: AtomicU32,
    online: AtomicU32,
    paused: AtomicU32,
    vcpus: [Vcpu; MAX_VCPUS_PER_VM],
}

const DOWN: u32 = 0;
const STARTING: u32 = 1;
const RUNNING: u32 = 2;
const STOPPING: u32 = 3;

impl Default for Power {
    fn default() -> Self {
        Self::new()
    }
}

impl Power {
    /// A VM that has not been started.
    pub const fn new() -> Self {
        Self {
            phase: AtomicU32::new(DOWN),
            online: AtomicU32::new(0),
            paused: AtomicU32::new(0),
            vcpus: [const {
                Vcpu {
                    state: AtomicU32::new(0),
                    entry: AtomicU64::new(0),
                    context: AtomicU64::new(0),
                }
            }; MAX_VCPUS_PER_VM],
        }
    }

    /// What the VM does.
    pub fn phase(&self) -> Phase {
        let word = self.phase.load(Ordering::Acquire);
        match word & 0xff {
            DOWN => Phase::Down,
            STARTING => Phase::Starting,
            RUNNING => Phase::Running,
            _ => Phase::Stopping(
                End::ALL
                    .into_iter()
                    .find(|end| *end as u32 == word >> 8)
                    .unwrap_or(End::Crash),
            ),
        }
    }

    /// For the boot vCPU's pCPU: the VM is being made ready.
    pub fn prepare(&self) {
        self.phase.store(STARTING, Ordering::Release);
    }

    /// For the boot vCPU's pCPU: the VM runs from now on, vCPU 0 is on. `false` if somebody has stopped
    /// it in the meantime.
    pub fn begin(&self) -> bool {
        if let Some(boot) = self.vcpus.first() {
            boot.state.store(State::On as u32, Ordering::Relaxed);
        }
        self.online.store(1, Ordering::Release);
        self.phase
            .compare_exchange(STARTING, RUNNING, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Ends the VM. `true` for the one who did; then all of its pCPUs must be told. Whoever comes later
    /// changes nothing: the first reason counts.
    pub fn stop(&self, end: End) -> bool {
        let ended = STOPPING | (end as u32) << 8;
        [RUNNING, STARTING].into_iter().any(|from| {
            self.phase
                .compare_exchange(from, ended, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        })
    }

    /// The VM has ended and everything about it is done.
    pub fn down(&self) {
        self.paused.store(0, Ordering::Relaxed);
        self.phase.store(DOWN, Ordering::Release);
    }

    /// CPU_ON. After success the target's pCPU must be told. For a vCPU of the same VM, which is on.
    pub fn switch_on(&self, target: usize, vcpus: usize, start: Start) -> Result<(), Refused> {
        let vcpu = self.vcpus.get(target).filter(|_| target < vcpus);
        let vcpu = vcpu.ok_or(Refused::Absent)?;
        vcpu.state
            .compare_exchange(
                State::Off as u32,
                State::Claimed as u32,
                Ordering::AcqRel,
                Ordering::Acquire,
            )
            .map_err(|state| match state {
                state if state == State::On as u32 => Refused::On,
                _ => Refused::Pending,
            })?;
        // The caller is on, so this cannot raise the count from 0.
        self.online.fetch_add(1, Ordering::AcqRel);
        vcpu.entry.store(start.entry, Ordering::Relaxed);
        vcpu.context.store(start.context, Ordering::Relaxed);
        vcpu.state.store(State::Pending as u32, Ordering::Release);
        Ok(())
    }

    /// For a vCPU's pCPU: where it shall start, if somebody has switched it on.
    pub fn arrive(&self, own: usize) -> Option<Start> {
        let vcpu = self.vcpus.get(own)?;
        if vcpu.state.load(Ordering::Acquire) != State::Pending as u32 {
            return None;
        }
        let start = Start {
            entry: vcpu.entry.load(Ordering::Relaxed),
            context: vcpu.context.load(Ordering::Relaxed),
        };
        vcpu.state.store(State::On as u32, Ordering::Release);
        Some(start)
    }

    /// For a vCPU's pCPU, which has taken everything of the vCPU from the hardware: it is off. `true` if
    /// it was the last one that was on: then the VM has ended, and the caller does what that takes.
    pub fn leave(&self, own: usize) -> bool {
        if let Some(vcpu) = self.vcpus.get(own) {
            vcpu.state.store(State::Off as u32, Ordering::Release);
        }
        if self.online.fetch_sub(1, Ordering::AcqRel) != 1 {
            return false;
        }
        // Nobody is left to switch one on. If nobody has said why it ends: because of this.
        self.stop(End::LastCpuOff);
        true
    }

    /// State of a vCPU.
    pub fn state(&self, vcpu: usize) -> State {
        match self
            .vcpus
            .get(vcpu)
            .map_or(0, |vcpu| vcpu.state.load(Ordering::Acquire))
        {
            0 => State::Off,
            1 => State::Claimed,
            2 => State::Pending,
            _ => State::On,
        }
    }

    /// The vCPU runs, or shall.
    pub fn is_wanted(&self, vcpu: usize) -> bool {
        matches!(self.state(vcpu), State::On | State::Pending)
    }

    /// Lets the vCPUs stand still, or go on. `true` if that is a change: then their pCPUs must be told.
    pub fn pause(&self, paused: bool) -> bool {
        let new = u32::from(paused);
        self.paused.swap(new, Ordering::AcqRel) != new
    }

    /// How many vCPUs are on, or about to be.
    pub fn online(&self) -> u32 {
        self.online.load(Ordering::Acquire)
    }

    /// The vCPUs stand still.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire) != 0
    }
}

/// How often a VM has been restarted after crashes: at most so many times in so many seconds, counted
/// from the first of them. Only who ends the VM touches it.
#[derive(Debug)]
#[repr(C)]
pub struct Restarts {
    since: AtomicU64,
    count: AtomicU32,
}

impl Default for Restarts {
    fn default() -> Self {
        Self::new()
    }
}

impl Restarts {
    /// None yet.
    pub const fn new() -> Self {
        Self {
            since: AtomicU64::new(0),
            count: AtomicU32::new(0),
        }
    }

    /// One more at `now`, if `limit` in `period` (both in ticks of a counter) allow it: how many there have
    /// been by now.
    pub fn another(&self, now: u64, period: u64, limit: u16) -> Option<u16> {
        let mut count = self.count.load(Ordering::Relaxed);
        if count == 0 || now.wrapping_sub(self.since.load(Ordering::Relaxed)) >= period {
            self.since.store(now, Ordering::Relaxed);
            count = 0;
        }
        if count >= u32::from(limit) {
            return None;
        }
        let count = count.saturating_add(1);
        self.count.store(count, Ordering::Relaxed);
        Some(count as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Start = Start {
        entry: 0x4000_0000,
        context: 7,
    };

    fn running() -> Power {
        let power = Power::new();
        power.prepare();
        assert!(power.begin());
        power
    }

    #[test]
    fn a_vcpu_is_switched_on_once() {
        let power = running();
        assert_eq!(power.switch_on(1, 2, START), Ok(()));
        assert_eq!(power.switch_on(1, 2, START), Err(Refused::Pending));
        assert_eq!(power.arrive(1), Some(START));
        assert_eq!(power.switch_on(1, 2, START), Err(Refused::On));
        assert_eq!(power.switch_on(0, 2, START), Err(Refused::On));
        assert_eq!(power.switch_on(2, 2, START), Err(Refused::Absent));
        assert_eq!(power.switch_on(usize::MAX, 2, START), Err(Refused::Absent));
        assert_eq!(power.arrive(1), None, "a vCPU that runs does not arrive");
    }

    #[test]
    fn the_last_vcpu_that_leaves_ends_the_vm() {
        let power = running();
        power.switch_on(1, 2, START).unwrap();
        assert!(!power.leave(0));
        assert_eq!(power.phase(), Phase::Running);
        assert!(power.arrive(1).is_some());
        assert!(power.leave(1));
        assert_eq!(power.phase(), Phase::Stopping(End::LastCpuOff));
    }

    #[test]
    fn the_first_reason_counts() {
        let power = running();
        assert!(power.stop(End::Crash));
        assert!(!power.stop(End::Off));
        assert!(power.leave(0));
        assert_eq!(power.phase(), Phase::Stopping(End::Crash));
        power.down();
        assert!(!power.stop(End::Off), "a VM that is down cannot be stopped");
        assert_eq!(power.phase(), Phase::Down);
    }

    #[test]
    fn a_vm_that_is_stopped_while_it_starts_does_not_run() {
        let power = Power::new();
        power.prepare();
        assert!(power.stop(End::Ordered));
        assert!(!power.begin());
        assert!(
            power.leave(0),
            "its boot vCPU counts, so that one end follows"
        );
    }

    #[test]
    fn a_vcpu_that_was_switched_on_while_its_vm_ends_still_counts() {
        let power = running();
        power.switch_on(1, 2, START).unwrap();
        assert!(power.stop(End::Off));
        assert!(!power.leave(0));
        assert!(power.is_wanted(1), "its pCPU has to take it off");
        assert!(power.leave(1));
    }

    #[test]
    fn ends_are_told_apart() {
        for end in End::ALL {
            let power = running();
            assert!(power.stop(end));
            assert_eq!(power.phase(), Phase::Stopping(end));
        }
        assert_eq!(
            End::ALL.map(|end| (end.is_crash(), end.is_restart())),
            [
                (false, false),
                (false, true),
                (false, false),
                (true, false),
                (true, false),
                (false, false),
                (false, true),
            ]
        );
    }

    #[test]
    fn a_vm_goes_through_its_phases_and_a_vcpu_through_its_states() {
        let power = Power::new();
        assert_eq!(power.phase(), Phase::Down);
        power.prepare();
        assert_eq!((power.phase(), power.online()), (Phase::Starting, 0));
        assert!(power.begin());
        assert_eq!((power.phase(), power.online()), (Phase::Running, 1));
        let states = || [0, 1, 2, MAX_VCPUS_PER_VM].map(|vcpu| power.state(vcpu));
        assert_eq!(states(), [State::On, State::Off, State::Off, State::Off]);
        power.switch_on(1, 3, START).unwrap();
        assert_eq!(states()[1], State::Pending);
        assert!(power.is_wanted(0) && power.is_wanted(1) && !power.is_wanted(2));
        assert_eq!(power.online(), 2);
        power.arrive(1).unwrap();
        assert_eq!(states()[1], State::On);
        power.vcpus[2]
            .state
            .store(State::Claimed as u32, Ordering::Relaxed);
        assert_eq!(states()[2], State::Claimed);
        assert!(!power.is_wanted(2), "it has no place to start from yet");
        assert_eq!(power.switch_on(2, 3, START), Err(Refused::Pending));
    }

    #[test]
    fn a_pause_is_a_change_once_and_does_not_outlive_the_vm() {
        let power = running();
        assert!(!power.is_paused());
        assert!(!power.pause(false));
        assert!(power.pause(true));
        assert!(power.is_paused());
        assert!(!power.pause(true));
        assert!(power.pause(false));
        assert!(!power.is_paused());
        power.pause(true);
        power.stop(End::Off);
        power.down();
        assert!(!power.is_paused());
    }

    #[test]
    fn restarts_are_counted_in_their_period() {
        let restarts = Restarts::new();
        assert_eq!(restarts.another(1000, 100, 2), Some(1));
        assert_eq!(restarts.another(1050, 100, 2), Some(2));
        assert_eq!(restarts.another(1099, 100, 2), None);
        assert_eq!(restarts.another(1100, 100, 2), Some(1), "a new period");
        assert_eq!(Restarts::new().another(0, 100, 0), None, "none allowed");
    }
}
