//! Power states of a VM and its vCPUs, and the lock-free changes between them
//! (`docs/internals/locking.md`).
//!
//! A VM is in a [`Phase`], a vCPU in a [`State`]; `online` counts the vCPUs that are not off. The
//! pCPU that takes the last vCPU off settles the end of the VM. Everything is atomic, because any
//! pCPU of the VM, and whoever has the authority over VMs, may ask for a change. Each change is one
//! compare-and-exchange from a phase in which it is allowed, so of two that race one succeeds, and
//! the other finds what it has led to:
//!
//! | from | to | by |
//! | --- | --- | --- |
//! | Down | Starting | [`Power::start`], an order or the start of the board |
//! | Starting | Running | [`Power::begin`], the boot vCPU's thread |
//! | Running | Paused, and back | [`Power::pause`], an order |
//! | Running | Asked, to stop | [`Power::ask`], an order |
//! | Asked | Asked, to stop or to start again | [`Power::ask`], [`Power::again`], orders |
//! | Starting | Stopping | [`Power::ask`], an order: the guest has done nothing yet |
//! | Starting, Running, Asked, Paused | Stopping | [`Power::stop`], anybody |
//! | Stopping | Stopping for another reason, or with another order | [`Power::stop`], [`Power::ask`], orders: see there |
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
    /// They may run, and the guest is asked to end. When it has, this order holds: [`End::Ordered`], it stays down, or
    /// [`End::OrderedRestart`], it starts again.
    Asked(End),
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

// The phase is the lowest byte of its word.
const DOWN: u32 = 0;
const STARTING: u32 = 1;
const RUNNING: u32 = 2;
/// With the order that holds in its byte.
const ASKED: u32 = 3;
const PAUSED: u32 = 4;
/// With the reason in the next byte, and the order in its byte if the VM was asked before.
const STOPPING: u32 = 5;
const ENDED: u32 = 6;

/// Place of the reason of an end.
const REASON: u32 = 8;
/// Place of the order that holds when a VM that is asked has ended; 0 for one that is not.
const ORDER: u32 = 16;

/// Number of the phase.
const fn number(word: u32) -> u32 {
    word & 0xff
}

/// The order that holds when a VM has ended, if it is asked.
const fn order_of(word: u32) -> u32 {
    word & 0xff << ORDER
}

/// The word of a VM that is asked, or was asked before it ended, with another order.
const fn with_order(word: u32, order: End) -> u32 {
    word & !(0xff << ORDER) | (order as u32) << ORDER
}

/// Being stopped for this reason.
const fn stopping(end: End) -> u32 {
    STOPPING | (end as u32) << REASON
}

/// The phase that a word stands for.
fn phase_of(word: u32) -> Phase {
    match number(word) {
        DOWN => Phase::Down,
        STARTING => Phase::Starting,
        RUNNING => Phase::Running,
        ASKED => Phase::Asked(End::of(word >> ORDER)),
        PAUSED => Phase::Paused,
        ENDED => Phase::Ended,
        _ => Phase::Stopping(End::of(word >> REASON & 0xff)),
    }
}

/// An end that is to be settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The reason that counts.
    pub end: End,
    /// The order that holds, if the guest was asked to end before it did: [`End::Ordered`] or [`End::OrderedRestart`].
    pub asked: Option<End>,
    word: u32,
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
        (RUNNING..=PAUSED).contains(&number(self.phase.load(Ordering::Acquire)))
    }

    /// Whether the vCPUs may run.
    pub fn is_running(&self) -> bool {
        (RUNNING..=ASKED).contains(&number(self.phase.load(Ordering::Acquire)))
    }

    /// The end that is to be settled, of a VM that is being stopped.
    pub fn ending(&self) -> Option<Ending> {
        let word = self.phase.load(Ordering::Acquire);
        (number(word) == STOPPING).then(|| Ending {
            end: End::of(word >> REASON & 0xff),
            asked: (order_of(word) != 0).then(|| End::of(word >> ORDER)),
            word,
        })
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

    /// Changes the phase to what `to` makes of it; `None`: that is not to be done in this phase. Returns the phase
    /// that it was, as word.
    fn turn(&self, to: impl Fn(u32) -> Option<u32>) -> Result<u32, Phase> {
        let mut seen = self.phase.load(Ordering::Acquire);
        // Whoever makes the exchange fail has changed the phase, which a VM does a few times in a
        // life.
        loop {
            let to = to(seen).ok_or(phase_of(seen))?;
            match self
                .phase
                .compare_exchange(seen, to, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Ok(seen),
                Err(now) => seen = now,
            }
        }
    }

    /// Ends the VM. `Ok(true)`: the VM was not being stopped yet; the caller must notify all its
    /// vCPUs. `Ok(false)`: the VM was being stopped, and is now for this reason. `Err`: this changes
    /// nothing, because of the phase that the VM is in.
    ///
    /// Of the reasons of the guest and of EL2 the first counts. An order counts more than these, and
    /// of two orders the later one does, until the end is settled. A VM that starts is not
    /// restarted: its guest has done nothing yet. [`End::Overdue`] ends a VM that is asked, and no other.
    pub fn stop(&self, end: End) -> Result<bool, Phase> {
        let from = match end {
            End::Overdue => ASKED..=ASKED,
            End::OrderedRestart => RUNNING..=PAUSED,
            _ => STARTING..=PAUSED,
        };
        let seen = self.turn(|seen| {
            let asked = if end.is_order() { 0 } else { order_of(seen) };
            let to = stopping(end) | asked;
            let first = from.contains(&number(seen));
            let replaces = number(seen) == STOPPING && end.is_order() && seen != to;
            (first || replaces).then_some(to)
        })?;
        Ok(number(seen) != STOPPING)
    }

    /// Asks the guest to end: when it has, the VM stays down. `Ok(Running)`, `Ok(Asked)`: the caller must tell the
    /// guest, for the first time or again. `Ok(Starting)`: the guest has done nothing yet, so that it is stopped instead, and the
    /// caller must notify all vCPUs. `Ok(Stopping)`: it ends already, and then stays down. `Err`: this changes nothing, because of
    /// the phase that the VM is in; a paused one could not hear it.
    pub fn ask(&self) -> Result<Phase, Phase> {
        let seen = self.turn(|seen| match number(seen) {
            RUNNING | ASKED => Some(with_order(ASKED, End::Ordered)),
            STARTING => Some(stopping(End::Ordered)),
            STOPPING => {
                let to = if End::of(seen >> REASON & 0xff).is_order() {
                    stopping(End::Ordered)
                } else {
                    with_order(seen, End::Ordered)
                };
                (seen != to).then_some(to)
            }
            _ => None,
        })?;
        Ok(phase_of(seen))
    }

    /// Lets a VM that is asked to end start again when it has. `Err`: it is in another phase.
    pub fn again(&self) -> Result<(), Phase> {
        let restart = |seen| with_order(seen, End::OrderedRestart);
        self.turn(|seen| (number(seen) == ASKED).then(|| restart(seen)))
            .map(drop)
    }

    /// Settles the end of a VM whose vCPUs are all off: it starts again, or stays down. `false`: it
    /// is being stopped for another reason meanwhile, or with another order. Called by the last vCPU that has left.
    pub fn settle(&self, ending: Ending, again: bool) -> bool {
        let to = if again { STARTING } else { ENDED };
        self.change(ending.word, to).is_ok()
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
#[path = "power/tests.rs"]
mod tests;
