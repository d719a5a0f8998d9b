//! What the pCPUs share about a VM: two pages for each, made of atomics and claims.

use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use bulkhead_abi::plan::{MAX_SPIS, MAX_VMS};
use bulkhead_core::console::Streams;
use bulkhead_core::pl011::Pl011;
use bulkhead_core::pl031::Pl031;
use bulkhead_core::power::{Power, Restarts};
use bulkhead_core::sched::Places;
use bulkhead_core::vgic::{Distributor, Notify};
use bulkhead_core::vtime::VirtualTime;
use bulkhead_core::watchdog::Watchdog;

use crate::hw::boot::vm_page;
use crate::hw::claim::Claim;
use crate::hw::gic;
use crate::start::plan;

/// The shared state of a VM. Zeros are what it is before it starts.
#[derive(Debug)]
#[repr(C)]
pub struct Vm {
    /// Its console.
    pub streams: Streams,
    /// Its interrupts.
    pub dist: Distributor,
    /// Its vCPUs: which are on, and whether it runs.
    pub power: Power,
    /// How often it has been restarted.
    pub restarts: Restarts,
    /// Its emulated UART.
    pub pl011: Claim<Pl011>,
    /// Its real-time clock.
    pub clock: Claim<Pl031>,
    /// Its watchdog.
    pub watchdog: Claim<Watchdog>,
    /// Its virtual time.
    pub time: VirtualTime,
    /// vCPUs that stand still because it is paused.
    pub standing: AtomicU32,
    /// VMs that have ended and of which it has not heard yet, a bit for each.
    pub events: AtomicU64,
    /// Why it ended the last time ([`bulkhead_abi::call::End`] as number).
    pub last_end: AtomicU32,
    /// What its pCPUs have still to do about its end: see [`crate::lifecycle`].
    pub after: AtomicU32,
    /// How often it has been started.
    life: AtomicU32,
    /// Those of its pCPUs that have not yet said what they have to say about its end.
    pub unsaid: AtomicU32,
    /// The virtual SPI behind each physical SPI from 32 on, 0 for none.
    behind: [AtomicU16; MAX_SPIS as usize],
}

/// [`Vm::events`] has a bit for each.
const _: () = assert!(MAX_VMS <= u64::BITS as usize);

/// VMs whose vCPUs have not all stopped and said their report.
static RUNNING: AtomicU32 = AtomicU32::new(0);

impl Vm {
    /// Links a physical SPI to a virtual one.
    pub fn link(&self, vintid: u32, pintid: u32, edge: bool) {
        self.dist.link(vintid, pintid, edge);
        if let Some(slot) = self.behind.get(pintid.wrapping_sub(32) as usize) {
            slot.store(vintid as u16, Ordering::Relaxed);
        }
    }

    /// Which of its lives this is, from 1.
    pub fn life(&self) -> u32 {
        self.life.load(Ordering::Acquire)
    }

    /// Counts a new life.
    pub fn next_life(&self) {
        self.life.fetch_add(1, Ordering::AcqRel);
    }

    /// The virtual SPI behind a physical one.
    pub fn behind(&self, pintid: u32) -> Option<u32> {
        let slot = self.behind.get(pintid.wrapping_sub(32) as usize)?;
        Some(u32::from(slot.load(Ordering::Relaxed))).filter(|vintid| *vintid != 0)
    }
}

/// The shared state of the VM `index` of the plan.
#[inline(always)]
pub fn vm(index: usize) -> &'static Vm {
    vm_page(index)
}

/// Where each vCPU is.
pub static PLACES: Places = Places::new();

/// Rows of the plan of the vCPUs of a VM.
pub fn ids_of(vm: usize) -> core::ops::Range<usize> {
    let vcpus = plan().vcpus;
    let first = vcpus.partition_point(|row| usize::from(row.vm) < vm);
    first..first.wrapping_add(plan().vcpus_of(vm).len())
}

/// Row of the plan of a vCPU, by the numbers of its VM and in it.
pub fn id_of(vm: usize, vcpu: usize) -> Option<usize> {
    ids_of(vm).nth(vcpu)
}

/// pCPUs of all vCPUs of a VM, which never leave them.
pub fn pcpus_of(vm: usize) -> impl Iterator<Item = usize> {
    plan()
        .vcpus_of(vm)
        .iter()
        .map(|vcpu| usize::from(vcpu.pcpu))
}

/// Makes the pCPUs of vCPUs look at their interrupts.
pub fn notify(vm: usize, whom: Notify) {
    for vcpu in whom.iter() {
        if let Some(id) = id_of(vm, vcpu) {
            gic::send(gic::SIBLING, PLACES.of(id));
        }
    }
}

/// Start-up says how many VMs there are.
pub fn set_running(count: u32) {
    RUNNING.store(count, Ordering::Relaxed);
}

/// A VM that had stopped starts again.
pub fn one_more() {
    RUNNING.fetch_add(1, Ordering::AcqRel);
}

/// A VM has stopped and everything about it has been said; `true` for the last.
pub fn one_less() -> bool {
    RUNNING.fetch_sub(1, Ordering::AcqRel) == 1
}

/// No VM runs any more.
pub fn all_stopped() -> bool {
    RUNNING.load(Ordering::Acquire) == 0
}
