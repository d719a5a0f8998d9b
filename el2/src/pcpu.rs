//! What the threads of a pCPU share: whose turn it is, the deadlines of all of them, and the board's UART. There is one
//! reference to it, which the thread that runs has.

use bulkhead_abi::plan::{MAX_VMS, PAGE};
use bulkhead_core::devices::deadlines::{Deadlines, Purpose};
use bulkhead_core::sched::balance::{Balancer, Move};
use bulkhead_core::sched::{SLOTS, Scheduler, Turn};
use bulkhead_core::vgic::WORDS;

use crate::console::state::Console;
use crate::hw::gic::Gic;
use crate::hw::layout::private;
use crate::hw::state::{IDLE, PcpuState, Vcpu};
use crate::hw::uart::Uart;
use crate::hw::{cpu, mmu, timer};
use crate::orders::ManageVms;
use crate::plan::plan;

/// In [`Pcpu::moves`]: somebody leaves.
pub const LEAVES: u32 = 1 << 31;
/// Milliseconds in which each fair vCPU that is always ready runs once.
const ROUND_MS: u64 = 6;

/// A vCPU of this pCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSlot {
    /// Row of the plan.
    pub id: u8,
    /// Index of its VM.
    pub vm: u8,
    /// Its number in its VM.
    pub number: u8,
    /// When it has something to do by itself (physical counter), while it does not run; else [`u64::MAX`].
    pub wakes_at: u64,
    /// Its virtual SPIs whose physical ones came while it did not run.
    pub arrived: [u32; WORDS],
}

/// See the module.
#[derive(Debug)]
pub struct Pcpu {
    /// Who runs.
    pub sched: Scheduler,
    /// What it last said.
    pub turn: Turn,
    /// It has to be asked again before a guest goes on.
    pub look_again: bool,
    /// WFI and WFE trap.
    pub traps: [bool; 2],
    /// Nanoseconds of a tick, in 2^-32.
    scale: u64,
    /// Its index in the plan.
    pub index: usize,
    /// Its GIC.
    pub gic: Gic,
    /// Who moves away, on a pCPU of a pool.
    pub balancer: Option<Balancer>,
    /// It has measured in this period.
    pub measured: bool,
    /// This vCPU is to move.
    pub leaves: Option<Move>,
    /// What has to be done behind a switch: a bit for each slot whose vCPU has come and not run yet, and [`LEAVES`].
    pub moves: u32,
    /// How many slots may have a vCPU: those before this one.
    pub used: usize,
    /// The vCPUs, by their slots, the first of which are used.
    pub run_slots: [Option<RunSlot>; SLOTS],
    /// Those for whom something has come while they did not run: a bit for each slot.
    pub pending: u32,
    /// Those whose threads have nothing to do here but to go back to their guests: the one reference to each. The last is nobody's.
    pub resting: [Option<&'static mut Vcpu>; SLOTS + 1],
    /// No earlier does one of them that does not run have something to do by itself.
    pub soonest: u64,
    /// No earlier is there something to do beside the vCPU that runs: the smaller of `soonest` and of what `deadlines` has.
    pub due: u64,
    /// The core has registers that others have not ([`cpu::has_auxiliary_registers`]): 0 or 1.
    pub auxiliary: u64,
    /// For nothing but the end of a turn EL2's timer is armed before this.
    pub rest: u64,
    /// Stack pointers of the threads that do not run; the last is that of the thread that waits.
    pub stacks: [u64; SLOTS + 1],
    /// Whose registers the hardware has: a slot, or [`IDLE`] for nobody's.
    pub loaded: usize,
    /// Which private interrupts the board signals, as [`bulkhead_core::vgic::Cpu::enabled_on_board`] has it, while no vCPU runs.
    pub enabled: u32,
    /// The slot of each VM whose vCPU was here last.
    pub last: [u8; MAX_VMS],
    /// Deadlines of the pCPU itself.
    deadlines: Deadlines,
    /// The board's UART, on the pCPU that drains the console.
    pub console: Option<Console>,
}

impl Pcpu {
    /// pCPU `index` before it has started anything.
    #[inline(always)]
    pub fn new(index: usize) -> Self {
        let uart = mmu::private_frame(index, private::UART, PAGE);
        let drains = plan().pcpus.get(index).is_some_and(|row| row.service != 0);
        Self {
            sched: Scheduler::new(timer::milliseconds(ROUND_MS)),
            turn: Turn {
                slot: None,
                until: u64::MAX,
                trap_wfi: false,
                trap_wfe: false,
            },
            look_again: false,
            traps: [false; 2],
            scale: (1_000_000_000u64 << 32)
                .checked_div(timer::frequency())
                .unwrap_or(0),
            index,
            gic: Gic::of(index),
            balancer: None,
            measured: false,
            leaves: None,
            moves: 0,
            used: 0,
            run_slots: [None; SLOTS],
            pending: 0,
            resting: [const { None }; SLOTS + 1],
            soonest: u64::MAX,
            due: u64::MAX,
            auxiliary: cpu::has_auxiliary_registers(),
            rest: 0,
            stacks: [0; SLOTS + 1],
            loaded: IDLE,
            // That of no vCPU.
            enabled: u32::MAX,
            last: [u8::MAX; MAX_VMS],
            deadlines: Deadlines::new(),
            console: drains.then(|| Console::new(Uart(uart), ManageVms::of_console())),
        }
    }

    /// It has more than one vCPU, or others may come.
    pub fn is_shared(&self) -> bool {
        self.used > 1 || self.balancer.is_some()
    }

    /// Nanoseconds of some ticks.
    #[inline(always)]
    pub const fn in_nanoseconds(&self, ticks: u64) -> u64 {
        ((ticks as u128).wrapping_mul(self.scale as u128) >> 32) as u64
    }

    /// There are vCPUs beside the thread in slot `own`.
    pub fn has_others(&self, own: usize) -> bool {
        self.used > usize::from(own != IDLE)
    }

    /// The vCPU in a slot does not run from now on, and has something to do by itself at `at`.
    pub fn set_wake(&mut self, slot: usize, at: u64) {
        if let Some(run_slot) = self.run_slot(slot) {
            run_slot.wakes_at = at;
            self.soonest = self.soonest.min(at);
            self.due = self.due.min(at);
        }
    }

    /// The vCPU in a slot is awake: nothing has to wake it.
    #[inline(never)]
    pub fn wakes(&mut self, slot: usize) {
        if let Some(run_slot) = self.run_slot(slot)
            && run_slot.wakes_at != u64::MAX
        {
            let before = core::mem::replace(&mut run_slot.wakes_at, u64::MAX);
            if before == self.soonest {
                self.look_for_soonest();
            }
        }
    }

    #[inline(never)]
    fn look_for_soonest(&mut self) {
        let all = self.run_slots.iter().take(self.used).flatten();
        self.soonest = all.fold(u64::MAX, |soonest, run_slot| soonest.min(run_slot.wakes_at));
        self.is_due_at();
    }

    fn is_due_at(&mut self) {
        let deadline = self.deadlines.next().unwrap_or(u64::MAX);
        self.due = self.soonest.min(deadline);
    }

    /// Sets a deadline of the pCPU itself, or takes it away. `true` if the next one is another now.
    pub fn set_deadline(&mut self, purpose: Purpose, at: Option<u64>) -> bool {
        let is_other = self.deadlines.set(purpose, at);
        self.is_due_at();
        is_other
    }

    /// Takes a deadline of the pCPU itself that has come.
    pub fn take_deadline(&mut self, now: u64) -> Option<Purpose> {
        let taken = self.deadlines.take(now);
        self.is_due_at();
        taken
    }

    /// A deadline of the pCPU itself has come.
    pub const fn has_deadline(&self, now: u64) -> bool {
        self.deadlines.is_due(now)
    }

    /// Something has come for the vCPU in a slot.
    #[inline(always)]
    pub const fn has_pending(&self, slot: usize) -> bool {
        self.pending.wrapping_shr(slot as u32) & 1 != 0
    }

    /// The seat in a slot.
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
