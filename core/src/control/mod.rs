//! The control port's other end: what a manager may do, what is done, and what it is told (`docs/adr/0027-control.md`).
//!
//! * [`request`]: a request against the plan: what it asks for, or why not.
//! * [`session`]: a manager that has the port open: its requests, one at a time, and the questions that take longer.
//! * [`events`]: what a manager has not been told yet.
//! * [`asked`]: until when VMs that were asked to stop have time for it.
//! * [`crash`]: the last crash of a VM.
//! * [`typed`]: what a manager types on the console of a VM.
//!
//! All of it is pure: the [`Board`] does what it decides.

pub mod asked;
pub mod crash;
pub mod events;
pub mod request;
pub mod session;
pub mod typed;

#[cfg(test)]
mod console_tests;
#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod dump_tests;
#[cfg(test)]
mod stop_tests;
#[cfg(test)]
mod test_world;
#[cfg(test)]
mod tests;

pub use crash::LastCrash;
pub use events::Events;
pub use request::{Command, check};
pub use session::{APART_US, Session};
pub use typed::Typed;

use bulkhead_abi::control;
use bulkhead_abi::plan::Vcpu;

use crate::console::backlog::Found;
use crate::cpu::life::Settled;
use crate::cpu::power::{self, Phase};
use crate::monitor;
use crate::monitor::Published;
use crate::plan::Plan;
use crate::sched::{Change, Refusal};
use crate::virtio::memory::At;

/// Why an order or a change was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// It does not fit the phase that the VM is in.
    Phase(Phase),
    /// It breaks a rule of the plan.
    Refused(Refusal),
    /// Somebody else gives an order at this moment: it is to be tried again.
    Busy,
}

/// What a manager can order about a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// To start it.
    Start,
    /// To stop it.
    Stop,
    /// To end it and to start it again, or to start it.
    Restart,
    /// To pause it.
    Pause,
    /// To let it go on.
    Resume,
}

/// State of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmState {
    /// Its phase.
    pub phase: Phase,
    /// Number of its lives so far.
    pub lives: u32,
    /// Its last end, if a life has ended.
    pub settled: Option<Settled>,
}

/// The board as a manager sees it.
pub trait Board {
    /// The plan.
    fn plan(&self) -> &Plan<'_>;
    /// The counter, and its ticks in a second.
    fn time(&self) -> [u64; 2];
    /// State of a VM.
    fn vm(&self, vm: usize) -> VmState;
    /// pCPU and power state of a vCPU (row of the plan) with this number in its VM.
    fn vcpu(&self, id: usize, vm: usize, number: usize) -> (usize, power::State);
    /// The limits of a vCPU (row of the plan) as they hold now. `None`: they are being changed.
    fn limits(&self, id: usize) -> Option<Vcpu>;
    /// Asks a VM to stop. Gives the nanoseconds that are left to it; 0 if it ends already.
    fn shut_down(&mut self, vm: usize) -> Result<u64, Denied>;
    /// Gives an order about a VM.
    fn order(&mut self, order: Order, vm: usize) -> Result<(), Denied>;
    /// Changes the limits of a VM's vCPUs, or only says whether that could be done.
    fn change(&mut self, vm: usize, change: Change, is_trial: bool) -> Result<(), Denied>;
    /// What the devices of a VM have had of the service thread: slices, nanoseconds, the longest.
    fn service(&self, vm: usize) -> [u64; 3];
    /// The last crash of a VM.
    fn last_crash(&self, vm: usize) -> &LastCrash;
    /// Whether all vCPUs of a VM that is to be paused are.
    fn is_paused(&self, vm: usize) -> bool;
    /// Copies memory of a VM, from a physical address to where a manager reads it.
    fn copy(&mut self, pa: u64, to: At, bytes: u32);
    /// Writes bytes where a manager reads them.
    fn write(&mut self, bytes: &[u8], to: At);
    /// Reads what a VM has printed: see [`Backlog::read`](crate::console::backlog::Backlog::read).
    fn printed(&self, vm: usize, from: u64, most: u32, to: &mut [u64]) -> Found;
    /// Has so many bytes typed on the console of a VM. `false`: the ones before still wait.
    fn type_on(&self, vm: usize, bytes: u32, words: [u64; 3]) -> bool;
    /// How many bytes were taken of those that were typed last, if that is known yet.
    fn taken(&self) -> Option<u32>;
    /// Questions to vCPUs and pCPUs, and their answers.
    fn published(&self) -> &Published;
    /// Asks about a vCPU (row of the plan), and tells it or its pCPU that it is asked.
    fn ask(&self, id: usize, request: monitor::Request);
}

/// The number of a phase in messages.
pub(crate) const fn phase(phase: Phase) -> control::Phase {
    match phase {
        Phase::Down => control::Phase::Down,
        Phase::Starting => control::Phase::Starting,
        Phase::Running => control::Phase::Running,
        Phase::Asked(_) => control::Phase::Asked,
        Phase::Paused => control::Phase::Paused,
        Phase::Stopping(_) => control::Phase::Stopping,
        Phase::Ended => control::Phase::Ended,
    }
}
