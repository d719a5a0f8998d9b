//! Power states of a VM and its vCPUs, and the lock-free changes between them
//! (`docs/internals/locking.md`).
//!
//! A VM is in a [`Phase`], a vCPU in a [`State`]; `online` counts the vCPUs that are not off. The
//! pCPU that takes the last vCPU off ends the VM. Everything is atomic, because any pCPU of the VM,
//! and the pCPU that serves the console, may ask for a change; each change is one
//! compare-and-exchange, so of two that race exactly one succeeds.
//!
//! States and calls: DEN0022E (PSCI), sections 5.4 to 5.8 and 6.6.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bulkhead_abi::plan::MAX_VCPUS_PER_VM;

/// Phase in the life of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The VM has not been started, or it has ended and its end has been fully reported.
    Down,
    /// The boot pCPU is preparing the VM.
    Starting,
    /// The vCPUs may run.
    Running,
    /// The vCPUs are being taken off, for this reason.
    Stopping(End),
}

/// Reason for the end of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum End {
    /// SYSTEM_OFF.
    Off = 1,
    /// SYSTEM_RESET or SYSTEM_RESET2.
    Reset = 2,
    /// CPU_OFF of the last vCPU that was on.
    LastCpuOff = 3,
    /// A crash: a fault that could not be injected, or an SError.
    Crash = 4,
    /// The watchdog of the VM was not refreshed.
    Watchdog = 5,
    /// The console stopped it.
    Ordered = 6,
    /// The console restarts it.
    OrderedRestart = 7,
}

impl End {
    const ALL: [Self; 7] = [
        Self::Off,
        Self::Reset,
        Self::LastCpuOff,
        Self::Crash,
        Self::Watchdog,
        Self::Ordered,
        Self::OrderedRestart,
    ];

    /// Whether this is a crash: the VM's crash policy decides what follows.
    pub const fn is_crash(self) -> bool {
        matches!(self, Self::Crash | Self::Watchdog)
    }

    /// Whether the VM is to start again, by its own or the console's request.
    pub const fn is_restart(self) -> bool {
        matches!(self, Self::Reset | Self::OrderedRestart)
    }
}

/// Power state of a vCPU, as AFFINITY_INFO reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// The vCPU is off.
    Off = 0,
    /// A CPU_ON is writing its entry point.
    Claimed = 1,
    /// The vCPU is to start; its pCPU has been notified.
    Pending = 2,
    /// The vCPU is on.
    On = 3,
}

/// Reason why a vCPU cannot be switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The VM has no such vCPU.
    Absent,
    /// The vCPU is on.
    On,
    /// Another CPU_ON of the vCPU is under way.
    Pending,
}

#[derive(Debug)]
#[repr(C)]
struct Vcpu {
    state: AtomicU32,
    entry: AtomicU64,
    context: AtomicU64,
}

/// Entry point of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// IPA of the first instruction.
    pub entry: u64,
    /// Value of x0.
    pub context: u64,
}

/// Power state of a VM and its vCPUs.
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

    /// The phase of the VM.
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

    /// Starts preparing the VM. Called on the boot vCPU's pCPU.
    pub fn prepare(&self) {
        self.phase.store(STARTING, Ordering::Release);
    }

    /// Lets the VM run, with vCPU 0 on. Returns `false` if the VM has been stopped in the meantime.
    /// Called on the boot vCPU's pCPU.
    pub fn begin(&self) -> bool {
        if let Some(boot) = self.vcpus.first() {
            boot.state.store(State::On as u32, Ordering::Relaxed);
        }
        self.online.store(1, Ordering::Release);
        self.phase
            .compare_exchange(STARTING, RUNNING, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Ends the VM. Returns `true` for the caller whose reason counts, which is the first; it must
    /// then notify all pCPUs of the VM.
    pub fn stop(&self, end: End) -> bool {
        let ended = STOPPING | (end as u32) << 8;
        [RUNNING, STARTING].into_iter().any(|from| {
            self.phase
                .compare_exchange(from, ended, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        })
    }

    /// Records that the VM has ended and everything about its end is done.
    pub fn down(&self) {
        self.paused.store(0, Ordering::Relaxed);
        self.phase.store(DOWN, Ordering::Release);
    }

    /// Switches a vCPU on (CPU_ON). After success the target's pCPU must be notified. The caller
    /// runs for a vCPU of the same VM, which is on.
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

    /// Takes the entry point of a vCPU that has been switched on; `None` if it has not been. Called
    /// on the vCPU's pCPU.
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

    /// Marks a vCPU as off. Called on its pCPU, after its state is off the hardware. Returns `true`
    /// if it was the last vCPU that was on: then the VM has ended, and the caller completes its
    /// end.
    pub fn leave(&self, own: usize) -> bool {
        if let Some(vcpu) = self.vcpus.get(own) {
            vcpu.state.store(State::Off as u32, Ordering::Release);
        }
        if self.online.fetch_sub(1, Ordering::AcqRel) != 1 {
            return false;
        }
        // No vCPU is left that could switch one on. If no other reason has been recorded, the VM
        // ends because of this.
        self.stop(End::LastCpuOff);
        true
    }

    /// The power state of a vCPU.
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

    /// Whether the vCPU is on or is to start.
    pub fn is_wanted(&self, vcpu: usize) -> bool {
        matches!(self.state(vcpu), State::On | State::Pending)
    }

    /// Pauses or resumes the vCPUs. Returns `true` if that is a change: then their pCPUs must be
    /// notified.
    pub fn pause(&self, paused: bool) -> bool {
        let new = u32::from(paused);
        self.paused.swap(new, Ordering::AcqRel) != new
    }

    /// Number of vCPUs that are on or about to be.
    pub fn online(&self) -> u32 {
        self.online.load(Ordering::Acquire)
    }

    /// Whether the VM is paused.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire) != 0
    }
}

/// Counter of the restarts of a VM after crashes: at most a number in a period, which starts with
/// the first of them. Only the pCPU that ends the VM uses it.
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
    /// A counter without restarts.
    pub const fn new() -> Self {
        Self {
            since: AtomicU64::new(0),
            count: AtomicU32::new(0),
        }
    }

    /// Counts one more restart at `now`, if `limit` in `period` (both times in ticks of a counter)
    /// allows it, and returns their number so far in the period; otherwise `None`.
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
