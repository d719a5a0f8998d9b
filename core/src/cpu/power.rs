//! Power states of a VM and its vCPUs, and the lock-free changes between them
//! (`docs/internals/locking.md`).
//!
//! A VM is in a [`Phase`], a vCPU in a [`State`]; `online` counts the vCPUs that are not off. The
//! pCPU that takes the last vCPU off settles the end of the VM. Everything is atomic, because any
//! pCPU of the VM, and the pCPU that serves the console, may ask for a change. Each change is one
//! compare-and-exchange from a phase in which it is allowed, so of two that race one succeeds, and
//! the other finds what it has led to:
//!
//! | from | to | by |
//! | --- | --- | --- |
//! | Down | Starting | [`Power::start`], an order or the start of the board |
//! | Starting | Running | [`Power::begin`], the boot vCPU's thread |
//! | Running | Paused, and back | [`Power::pause`], an order |
//! | Starting, Running, Paused | Stopping | [`Power::stop`], anybody |
//! | Stopping | Stopping for another reason | [`Power::stop`], an order: see there |
//! | Stopping | Starting or Ended | [`Power::settle`], the last vCPU that goes off |
//! | Ended | Down | [`Power::down`], the last vCPU that has printed its report |
//!
//! States and calls: DEN0022E (PSCI), sections 5.4 to 5.8 and 6.6.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub use bulkhead_abi::call::End;
use bulkhead_abi::plan::MAX_VCPUS_PER_VM;

/// Phase in the life of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The VM has not been started, or it has ended and its end has been fully reported.
    Down,
    /// The VM is being prepared, or will be once the reason of its last end has been printed.
    Starting,
    /// The vCPUs may run.
    Running,
    /// The vCPUs do not run until the VM is resumed.
    Paused,
    /// The vCPUs are being taken off, for this reason.
    Stopping(End),
    /// All vCPUs are off, and the VM stays down. Its vCPUs print their reports.
    Ended,
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
    vcpus: [Vcpu; MAX_VCPUS_PER_VM],
}

const DOWN: u32 = 0;
const STARTING: u32 = 1;
const RUNNING: u32 = 2;
const PAUSED: u32 = 3;
const ENDED: u32 = 4;
/// With the reason in the bits from 8 on, and so greater than all others.
const STOPPING: u32 = 5;

/// Being stopped for this reason.
const fn stopping(end: End) -> u32 {
    STOPPING | (end as u32) << 8
}

/// The phase that a word stands for.
fn phase_of(word: u32) -> Phase {
    match word & 0xff {
        DOWN => Phase::Down,
        STARTING => Phase::Starting,
        RUNNING => Phase::Running,
        PAUSED => Phase::Paused,
        ENDED => Phase::Ended,
        _ => Phase::Stopping(End::of(word >> 8)),
    }
}

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
        phase_of(self.phase.load(Ordering::Acquire))
    }

    /// Whether the vCPUs run or would if they were not paused.
    pub fn is_up(&self) -> bool {
        (RUNNING..=PAUSED).contains(&self.phase.load(Ordering::Acquire))
    }

    /// Whether the vCPUs may run.
    pub fn is_running(&self) -> bool {
        self.phase.load(Ordering::Acquire) == RUNNING
    }

    /// Whether the VM is to be prepared. Once it is not, it is not again before its boot vCPU has
    /// been taken off.
    pub fn is_starting(&self) -> bool {
        self.phase.load(Ordering::Acquire) == STARTING
    }

    /// Changes the phase, if it is `from`. Returns the phase that it was otherwise.
    fn change(&self, from: u32, to: u32) -> Result<(), Phase> {
        self.phase
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
            .map_err(phase_of)
    }

    /// Starts a VM that is down. The boot vCPU's thread must then prepare it.
    pub fn start(&self) -> Result<(), Phase> {
        self.change(DOWN, STARTING)
    }

    /// Lets the VM run, with vCPU 0 on. Returns `false` if the VM has been stopped in the meantime:
    /// vCPU 0 is on nevertheless and has to leave. Called on the boot vCPU's pCPU.
    pub fn begin(&self) -> bool {
        if let Some(boot) = self.vcpus.first() {
            boot.state.store(State::On as u32, Ordering::Relaxed);
        }
        self.online.store(1, Ordering::Release);
        self.change(STARTING, RUNNING).is_ok()
    }

    /// Ends the VM. `Ok(true)`: the VM was not being stopped yet; the caller must notify all its
    /// vCPUs. `Ok(false)`: the VM was being stopped, and is now for this reason. `Err`: this changes
    /// nothing, because of the phase that the VM is in.
    ///
    /// Of the reasons of the guest and of EL2 the first counts. An order counts more than these, and
    /// of two orders the later one does, until the end is settled. A VM that starts is not
    /// restarted: its guest has done nothing yet.
    pub fn stop(&self, end: End) -> Result<bool, Phase> {
        let to = stopping(end);
        let from = if end == End::OrderedRestart {
            RUNNING
        } else {
            STARTING
        };
        let mut seen = self.phase.load(Ordering::Acquire);
        // Whoever makes the exchange fail has changed the phase, which a VM does a few times in a
        // life.
        loop {
            let first = (from..=PAUSED).contains(&seen);
            let replaces = seen >= STOPPING && end.is_order() && seen != to;
            if !first && !replaces {
                return Err(phase_of(seen));
            }
            match self
                .phase
                .compare_exchange(seen, to, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Ok(first),
                Err(now) => seen = now,
            }
        }
    }

    /// Settles the end of a VM whose vCPUs are all off: it starts again, or stays down. `false`: it
    /// is being stopped for another reason meanwhile. Called by the last vCPU that has left.
    pub fn settle(&self, end: End, again: bool) -> bool {
        let to = if again { STARTING } else { ENDED };
        self.change(stopping(end), to).is_ok()
    }

    /// Records that everything about the end of the VM has been printed.
    pub fn down(&self) -> bool {
        self.change(ENDED, DOWN).is_ok()
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
        let _recorded = self.stop(End::LastCpuOff);
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

    /// Pauses or resumes the vCPUs, which must then be notified. `Err`: the VM is in another phase
    /// than that takes.
    pub fn pause(&self, paused: bool) -> Result<(), Phase> {
        let (from, to) = if paused {
            (RUNNING, PAUSED)
        } else {
            (PAUSED, RUNNING)
        };
        self.change(from, to)
    }

    /// Number of vCPUs that are on or about to be.
    pub fn online(&self) -> u32 {
        self.online.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Start = Start {
        entry: 0x4000_0000,
        context: 7,
    };

    fn starting() -> Power {
        let power = Power::new();
        assert_eq!(power.start(), Ok(()));
        power
    }

    fn running() -> Power {
        let power = starting();
        assert!(power.begin());
        power
    }

    fn stopping(end: End) -> Power {
        let power = running();
        assert_eq!(power.stop(end), Ok(true));
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
        let power = running();
        assert_eq!(power.pause(true), Ok(()));
        assert!(power.leave(0));
        assert_eq!(power.phase(), Phase::Stopping(End::LastCpuOff));
    }

    #[test]
    fn of_reasons_that_are_no_orders_the_first_counts() {
        let all = End::ALL.into_iter().filter(|end| !end.is_order());
        for first in all.clone() {
            for second in all.clone() {
                let power = stopping(first);
                assert_eq!(power.stop(second), Err(Phase::Stopping(first)));
                assert_eq!(power.phase(), Phase::Stopping(first));
            }
        }
    }

    #[test]
    fn an_order_counts_more_and_the_last_order_most() {
        for first in End::ALL {
            for order in [End::Ordered, End::OrderedRestart] {
                let power = stopping(first);
                let told = if first == order {
                    Err(Phase::Stopping(first))
                } else {
                    Ok(false)
                };
                assert_eq!(power.stop(order), told, "{first:?} {order:?}");
                assert_eq!(power.phase(), Phase::Stopping(order));
                for late in End::ALL.into_iter().filter(|end| !end.is_order()) {
                    assert_eq!(power.stop(late), Err(Phase::Stopping(order)));
                }
                assert!(power.leave(0));
                assert_eq!(power.phase(), Phase::Stopping(order));
                if first != order {
                    assert!(
                        !power.settle(first, true),
                        "that is not the reason any more"
                    );
                }
                assert!(power.settle(order, false));
                assert_eq!(power.stop(End::Ordered), Err(Phase::Ended));
                assert_eq!(power.stop(End::OrderedRestart), Err(Phase::Ended));
            }
        }
    }

    #[test]
    fn each_phase_is_left_only_for_those_that_may_follow() {
        use Phase::{Down, Ended, Paused, Running, Starting};
        let ended = || {
            let power = stopping(End::Off);
            assert!(power.settle(End::Off, false));
            power
        };
        let paused = || {
            let power = running();
            power.pause(true).unwrap();
            power
        };
        let phases: [(Phase, &dyn Fn() -> Power); 6] = [
            (Down, &Power::new),
            (Starting, &starting),
            (Running, &running),
            (Paused, &paused),
            (Phase::Stopping(End::Reset), &|| stopping(End::Reset)),
            (Ended, &ended),
        ];
        for (is, make) in phases {
            let power = make();
            assert_eq!(power.phase(), is);
            assert_eq!(power.is_running(), is == Running);
            assert_eq!(power.is_starting(), is == Starting);
            assert_eq!(power.is_up(), [Running, Paused].contains(&is));
            let may = |from: &[Phase]| {
                let may = from.contains(&is);
                if may { Ok(()) } else { Err(is) }
            };
            assert_eq!(make().start(), may(&[Down]));
            assert_eq!(make().begin(), is == Starting);
            assert_eq!(make().pause(true), may(&[Running]));
            assert_eq!(make().pause(false), may(&[Paused]));
            assert_eq!(make().down(), is == Ended);
            let stops = [Starting, Running, Paused].contains(&is);
            let told = if stops { Ok(true) } else { Err(is) };
            assert_eq!(make().stop(End::Crash), told);
            let again = make().settle(End::Reset, true);
            assert_eq!(again, is == Phase::Stopping(End::Reset));
            assert!(!make().settle(End::Off, true), "it is not for that reason");
        }
    }

    #[test]
    fn a_vm_that_starts_is_stopped_but_not_restarted() {
        let power = starting();
        assert_eq!(power.stop(End::OrderedRestart), Err(Phase::Starting));
        assert_eq!(power.stop(End::Ordered), Ok(true));
        assert!(!power.begin());
        assert!(
            power.leave(0),
            "its boot vCPU counts, so that one end follows"
        );
        assert_eq!(power.phase(), Phase::Stopping(End::Ordered));
    }

    #[test]
    fn a_vcpu_that_was_switched_on_while_its_vm_ends_still_counts() {
        let power = running();
        power.switch_on(1, 2, START).unwrap();
        assert_eq!(power.stop(End::Off), Ok(true));
        assert!(!power.leave(0));
        assert!(power.is_wanted(1), "its pCPU has to take it off");
        assert!(power.leave(1));
    }

    #[test]
    fn ends_are_told_apart() {
        for (end, number) in End::ALL.into_iter().zip(1..) {
            assert_eq!(stopping(end).phase(), Phase::Stopping(end));
            assert_eq!((End::of(number), end as u32), (end, number));
        }
        assert_eq!(End::of(0), End::Crash);
        assert_eq!(End::of(8), End::Crash);
        let orders = End::ALL.into_iter().filter(|end| end.is_order());
        assert!(orders.eq([End::Ordered, End::OrderedRestart]));
    }

    #[test]
    fn a_vcpu_goes_through_its_states() {
        let power = starting();
        assert_eq!(power.online(), 0);
        assert!(power.begin());
        assert_eq!(power.online(), 1);
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
    fn a_pause_does_not_outlive_the_vm() {
        let power = running();
        power.pause(true).unwrap();
        assert_eq!(power.stop(End::OrderedRestart), Ok(true));
        assert!(power.leave(0));
        assert!(power.settle(End::OrderedRestart, true));
        assert!(power.begin());
        assert_eq!(power.phase(), Phase::Running);
    }
}
