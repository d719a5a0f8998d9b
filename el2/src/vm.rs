//! The state of a VM that the pCPUs share: two pages for each VM, made of atomics and claims.

use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use bulkhead_abi::plan::{MAX_SPIS, MAX_VMS, VM_BACKGROUND};
use bulkhead_core::console::mux::Streams;
use bulkhead_core::cpu::life::Life;
use bulkhead_core::cpu::power::Phase;
use bulkhead_core::devices::pl011::Pl011;
use bulkhead_core::devices::pl031::Pl031;
use bulkhead_core::devices::vtime::VirtualTime;
use bulkhead_core::devices::watchdog::Watchdog;
use bulkhead_core::sched::Limits;
use bulkhead_core::sync::{ReportTurn, VcpuLocation};
use bulkhead_core::vgic::{Distributor, Notify};

use crate::hw::claim::Claim;
use crate::hw::gic;
use crate::hw::state::vm_page;
use crate::plan::plan;
use crate::profile::IO;

/// The shared state of a VM. All zeros is its value before the VM starts.
#[derive(Debug)]
#[repr(C)]
pub struct Vm {
    /// The console streams.
    pub streams: Streams,
    /// The emulated UART, where one instruction reaches it.
    pub pl011: Claim<Pl011>,
    /// The virtual distributor.
    pub dist: Distributor,
    /// The lives of the VM, and its power state.
    pub life: Life,
    /// The emulated real-time clock.
    pub clock: Claim<Pl031>,
    /// The emulated watchdog.
    pub watchdog: Claim<Watchdog>,
    /// The virtual time.
    pub time: VirtualTime,
    /// The number of vCPUs that are stopped because the VM is paused.
    pub paused_vcpus: AtomicU32,
    /// The VMs that have ended and whose end this VM has not been told yet, one bit for each.
    pub events: AtomicU64,
    /// The row of its first vCPU in the plan.
    first_vcpu: AtomicU16,
    /// The virtual SPI behind each physical SPI, from INTID 32 on; 0 for none.
    vintids: [AtomicU16; MAX_SPIS as usize],
}

/// [`Vm::events`] has one bit for each VM.
const _: () = assert!(MAX_VMS <= u64::BITS as usize);

/// The number of VMs of which not all vCPUs have stopped and printed their reports.
static RUNNING: AtomicU32 = AtomicU32::new(0);

impl Vm {
    /// The row of its first vCPU in the plan.
    #[inline(always)]
    pub fn first_vcpu(&self) -> usize {
        self.first_vcpu.load(Ordering::Relaxed).into()
    }

    /// Maps a physical SPI to a virtual interrupt.
    pub fn link(&self, vintid: u32, pintid: u32, edge: bool) {
        self.dist.link(vintid, pintid, edge);
        if let Some(place) = self.vintids.get(pintid.wrapping_sub(32) as usize) {
            place.store(vintid as u16, Ordering::Relaxed);
        }
    }

    /// Returns the virtual SPI behind a physical one.
    pub fn vintid_of(&self, pintid: u32) -> Option<u32> {
        let place = self.vintids.get(pintid.wrapping_sub(32) as usize)?;
        Some(u32::from(place.load(Ordering::Relaxed))).filter(|vintid| *vintid != 0)
    }
}

/// Returns the shared state of VM `index` of the plan.
#[inline(always)]
pub fn vm(index: usize) -> &'static Vm {
    vm_page(index)
}

/// The pCPU of each vCPU.
pub static VCPU_LOCATION: VcpuLocation = VcpuLocation::new();

/// The current limits of the vCPUs. Who has the authority over VMs changes them and tells the pCPUs
/// concerned.
pub static LIMITS: Limits = Limits::new();

/// Notes which rows of the plan each VM has, when the board starts.
pub fn find_vcpus() {
    for (row, vcpu) in plan().vcpus.iter().enumerate().rev() {
        vm(vcpu.vm.into())
            .first_vcpu
            .store(row as u16, Ordering::Relaxed);
    }
}

/// Returns the rows of a VM's vCPUs in the plan.
pub fn ids_of(index: usize) -> core::ops::Range<usize> {
    let first = vm(index).first_vcpu();
    first..first.wrapping_add(plan().vcpus_of(index).len())
}

/// Returns the row of a vCPU in the plan, by the index of its VM and its number in the VM.
pub fn id_of(index: usize, vcpu: usize) -> Option<usize> {
    let id = vm(index).first_vcpu().wrapping_add(vcpu);
    let row = plan().vcpus.get(id)?;
    (usize::from(row.vm) == index).then_some(id)
}

/// Notifies vCPUs of a VM, so that their pCPUs look at their interrupts. Only vCPUs that there are are notified.
#[inline(never)]
pub fn notify(vm: &Vm, whom: Notify) {
    for vcpu in whom.iter() {
        let id = vm.first_vcpu().wrapping_add(vcpu);
        gic::send(gic::SIBLING, VCPU_LOCATION.of(id));
    }
}

/// Makes an SPI of a VM pending that no device of the board has: by the SPI of the board that is linked to it, or else in the vGIC.
pub fn interrupt(vm: &Vm, gic: &gic::Gic, intid: u32) {
    let linked = vm.dist.physical(intid);
    if linked != 0 {
        gic::publish();
        gic.set_pending(linked, true);
        return;
    }
    notify(vm, vm.dist.post(intid, 0));
}

/// Starts a VM that is down; its boot vCPU must be notified. Called while the board starts, and
/// later by the pCPU that manages the VMs, so by one pCPU at a time.
#[inline(never)]
pub fn start(index: usize) -> Result<(), Phase> {
    // Counted first: whoever takes another VM down meanwhile must not take that for the last one.
    if counts(index) {
        RUNNING.fetch_add(1, Ordering::AcqRel);
    }
    vm(index).life.start()
}

/// Whether a VM keeps the board on.
fn counts(index: usize) -> bool {
    !IO || plan()
        .vms
        .get(index)
        .is_some_and(|row| row.flags & VM_BACKGROUND == 0)
}

/// Counts a VM that has stopped and has been reported completely; `true` if it was the last one
/// that ran.
pub fn one_less(index: usize) -> bool {
    counts(index) && RUNNING.fetch_sub(1, Ordering::AcqRel) == 1
}

/// The turn of printing a report.
pub static REPORT_TURN: ReportTurn = ReportTurn::new();

/// Whether no VM runs any more, and all has been said about it: the last one is counted out in its turn to report, before it says that it was
/// the last.
pub fn all_stopped() -> bool {
    RUNNING.load(Ordering::Acquire) == 0 && REPORT_TURN.is_free()
}
