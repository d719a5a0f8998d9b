//! The state that the threads of a pCPU share: the scheduler, the deadlines of all threads, and the
//! board's UART. One reference to it exists, held by the thread that runs.

use bulkhead_abi::plan::{CpuPolicy, MAX_VMS, PAGE};
use bulkhead_core::devices::deadlines::{Deadlines, Due, Purpose};
use bulkhead_core::sched::balance::Balancer;
use bulkhead_core::sched::balance::moves::Moves;
use bulkhead_core::sched::bound::DRAIN_NS;
use bulkhead_core::sched::{SLOTS, Scheduler, Wakes};
use bulkhead_core::vgic::WORDS;

use crate::console::state::Console;
use crate::hw::cpu::Waits;
use crate::hw::gic::Gic;
use crate::hw::layout::private;
use crate::hw::state::{IDLE, PcpuState, Vcpu};
use crate::hw::uart::{self, Uart};
use crate::hw::{cpu, mmu, timer};
use crate::plan::plan;
use crate::profile::IO;
use crate::vm::{Vm, vm};

/// The number of looks at interrupts between two slices of long work, at most.
pub const POLLS: u32 = 32;
/// The milliseconds in which each fair vCPU that is always ready runs once.
const ROUND_MS: u64 = 6;

/// In [`RunSlot::vm`]: none. The slot is that of a service thread.
pub const NO_VM: u8 = u8::MAX;

/// A run slot: the facts that a pCPU has of one of its vCPUs without touching the vCPU's own state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSlot {
    /// The row of the vCPU in the plan.
    pub id: u8,
    /// The index of its VM, or [`NO_VM`].
    pub vm: u8,
    /// The number of the vCPU in its VM.
    pub number: u8,
    /// Whether [`Self::arrived`] has any.
    pub has_arrived: bool,
    /// The virtual SPIs whose physical interrupts arrived while the vCPU did not run.
    pub arrived: [u32; WORDS],
}

impl RunSlot {
    /// Returns the shared state of its VM.
    pub fn vm(&self) -> Option<&'static Vm> {
        (!IO || self.vm != NO_VM).then(|| vm(self.vm.into()))
    }
}

/// The state that the threads of a pCPU share. The thread that runs holds the one reference to it.
///
/// What most exits look at comes first: an instruction reaches a byte in the first 4 KiB only.
#[derive(Debug)]
#[repr(C)]
pub struct Pcpu {
    /// The end of the turn: the time at which the scheduler must be asked again.
    pub until: u64,
    /// The time before which EL2's timer can fire only for the end of the turn.
    pub rest: u64,
    /// A lower bound of the times at which a vCPU that does not run must be woken.
    pub soonest: u64,
    /// A lower bound of the times at which anything but the running vCPU needs the timer: the
    /// earlier of `soonest` and the next of `deadlines`.
    pub due: u64,
    /// Whether the scheduler must be asked again before a guest goes on.
    pub look_again: bool,
    /// Whether `soonest` may be too early, because the vCPU that it was for runs again.
    is_stale: bool,
    /// Whether the load of this period has been measured.
    pub measured: bool,
    /// The slots for whose vCPUs something has arrived while they did not run, one bit for each.
    pub pending: u32,
    /// The private interrupts that are enabled on the board
    /// ([`bulkhead_core::vgic::Cpu::hw_enabled`]) while no vCPU runs.
    pub enabled: u32,
    /// Whether WFI and WFE trap.
    pub traps: Waits,
    /// The times at which vCPUs that do not run must be woken (physical counter).
    wakes: Wakes,
    /// The slot whose registers the hardware holds, or [`IDLE`] if it holds no vCPU's.
    pub loaded: usize,
    /// The additional work of a switch that this core needs ([`cpu::switch_quirks`]).
    pub quirks: u64,
    /// The nanoseconds of a tick, in units of 2^-32.
    scale: u64,
    /// The index of the pCPU in the plan.
    pub index: usize,
    /// The number of slots that may hold a vCPU: all slots below it.
    pub used: usize,
    /// The stack pointers of the threads that do not run; the last entry is the idle thread's.
    pub stacks: [u64; SLOTS + 1],
    /// The references to the vCPUs whose threads have nothing left to do at EL2 but return to their
    /// guests, by slot. The last entry stays empty.
    pub resting: [Option<&'static mut Vcpu>; SLOTS + 1],
    /// The number of the vCPU of each VM that ran here last.
    pub last: [u8; MAX_VMS],
    /// The migrations that are under way.
    pub moves: Moves,
    /// The vCPUs by slot; only the first [`Self::used`] entries can be occupied.
    pub run_slots: [Option<RunSlot>; SLOTS],
    /// The deadlines of the pCPU itself.
    deadlines: Deadlines,
    /// The scheduler.
    pub sched: Scheduler<IO>,
    /// The physical GIC as this pCPU uses it.
    pub gic: Gic,
    /// The balancer, which chooses the vCPUs that migrate away; only on a pCPU of a pool.
    pub balancer: Option<Balancer>,
    /// The board's UART, on the pCPU that drains the console.
    pub console: Option<Console>,
}

/// Returns the ticks between two turns of the console's drain that the servers of pCPU `index` count
/// on; 0 without servers.
fn pace(index: usize) -> u64 {
    let server = CpuPolicy::Server as u16;
    let mut vcpus = plan().vcpus_on(index);
    if vcpus.any(|(_, row)| row.policy == server) {
        timer::nanoseconds(DRAIN_NS)
    } else {
        0
    }
}

impl Pcpu {
    /// Returns the state of pCPU `index` before it has started anything.
    #[inline(always)]
    pub fn new(index: usize) -> Self {
        let (_, within) = uart::page_of(plan().header.board.uart);
        let uart = mmu::private_frame(index, private::UART, PAGE).behind(within);
        let drains = plan().pcpus.get(index).is_some_and(|row| row.service != 0);
        Self {
            sched: Scheduler::new(timer::milliseconds(ROUND_MS)),
            until: u64::MAX,
            look_again: false,
            traps: Waits::new(false, false),
            scale: (1_000_000_000u64 << 32)
                .checked_div(timer::frequency())
                .unwrap_or(0),
            index,
            gic: Gic::of(index),
            balancer: None,
            measured: false,
            moves: Moves::new(),
            used: 0,
            run_slots: [None; SLOTS],
            pending: 0,
            resting: [const { None }; SLOTS + 1],
            wakes: Wakes::new(),
            soonest: u64::MAX,
            is_stale: false,
            due: u64::MAX,
            quirks: cpu::switch_quirks(),
            rest: 0,
            stacks: [0; SLOTS + 1],
            loaded: IDLE,
            // A value that no vCPU has.
            enabled: u32::MAX,
            last: [u8::MAX; MAX_VMS],
            deadlines: Deadlines::new(),
            console: drains.then(|| Console::new(Uart(uart), pace(index))),
        }
    }

    /// Whether the pCPU has more than one vCPU, or others may migrate here.
    pub fn is_shared(&self) -> bool {
        self.used > 1 || self.balancer.is_some()
    }

    /// The slots that may hold a vCPU.
    #[inline(always)]
    pub fn slots(&self) -> &[Option<RunSlot>] {
        self.run_slots.get(..self.used).unwrap_or_default()
    }

    /// Returns the slot of the vCPU `id` (row of the plan), if it is here.
    #[inline(always)]
    pub fn slot_of(&self, id: usize) -> Option<usize> {
        let mut all = self.slots().iter();
        all.position(|place| {
            place
                .as_ref()
                .is_some_and(|place| usize::from(place.id) == id)
        })
    }

    /// Counts the slots in use, after `run_slots` has changed.
    pub fn count_slots(&mut self) {
        let last = self.run_slots.iter().rposition(Option::is_some);
        self.used = last.map_or(0, |last| last.wrapping_add(1));
    }

    /// Converts ticks to nanoseconds.
    #[inline(always)]
    pub const fn in_nanoseconds(&self, ticks: u64) -> u64 {
        ((ticks as u128).wrapping_mul(self.scale as u128) >> 32) as u64
    }

    /// Records that the vCPU in a slot, which stops running now, must be woken at `at`.
    #[inline(always)]
    pub fn set_wake(&mut self, slot: usize, at: u64) {
        self.wakes.set(slot, at);
        self.soonest = self.soonest.min(at);
        self.due = self.due.min(at);
    }

    /// Clears the wake time of the vCPU in a slot, which is awake now, or leaves.
    #[inline(always)]
    pub fn clear_wake(&mut self, slot: usize) {
        let before = self.wakes.clear(slot);
        if before == self.soonest && before != Wakes::NEVER {
            self.is_stale = true;
            self.renew_soonest();
        }
    }

    /// Makes `soonest` exact if it is before the end of the turn, which has just been decided. Most turns
    /// end before anybody's time has come, and need not ask whose is next. A time that is too
    /// early costs an interrupt of EL2's timer, after which it is exact.
    #[inline(always)]
    pub fn renew_soonest(&mut self) {
        if self.is_stale && self.soonest < self.until {
            self.look_for_soonest();
        }
    }

    /// Clears the wake times that have passed. Returns the slots of their vCPUs, one bit for each.
    #[inline(always)]
    pub fn take_wakes(&mut self, now: u64) -> u32 {
        let (found, soonest) = self.wakes.take(self.used, now);
        self.set_soonest(soonest);
        found
    }

    #[inline(never)]
    fn look_for_soonest(&mut self) {
        self.set_soonest(self.wakes.next(self.used));
    }

    #[inline(always)]
    fn set_soonest(&mut self, soonest: u64) {
        self.is_stale = false;
        self.soonest = soonest;
        self.is_due_at();
    }

    fn is_due_at(&mut self) {
        let deadline = self.deadlines.next().unwrap_or(u64::MAX);
        self.due = self.soonest.min(deadline);
    }

    /// Sets or clears a deadline of the pCPU itself. Returns whether the next deadline has changed.
    pub fn set_deadline(&mut self, purpose: Purpose, at: Option<u64>) -> bool {
        let is_other = self.deadlines.set(purpose, at);
        self.is_due_at();
        is_other
    }

    /// Takes the deadlines of the pCPU itself that have passed.
    pub fn take_deadlines(&mut self, now: u64) -> Due {
        let taken = self.deadlines.take(now);
        self.is_due_at();
        taken
    }

    /// Whether a deadline of the pCPU itself has passed.
    pub const fn has_deadline(&self, now: u64) -> bool {
        self.deadlines.is_due(now)
    }

    /// Whether something has arrived for the vCPU in a slot.
    #[inline(always)]
    pub const fn has_pending(&self, slot: usize) -> bool {
        self.pending.wrapping_shr(slot as u32) & 1 != 0
    }

    /// Returns the run slot with an index, if it is occupied.
    pub fn run_slot(&mut self, slot: usize) -> Option<&mut RunSlot> {
        self.run_slots.get_mut(slot)?.as_mut()
    }
}

impl PcpuState for Pcpu {
    #[inline(always)]
    fn new(index: usize) -> Self {
        Self::new(index)
    }

    #[inline(always)]
    fn stacks(&mut self) -> &mut [u64; SLOTS + 1] {
        &mut self.stacks
    }

    #[inline(always)]
    fn resting(&mut self) -> &mut [Option<&'static mut Vcpu>; SLOTS + 1] {
        &mut self.resting
    }
}
