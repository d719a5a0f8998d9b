//! What the pCPUs share about a VM: two pages for each, made of atomics and claims.

use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use bulkhead_abi::plan::{MAX_SPIS, MAX_VMS};
use bulkhead_core::console::mux::Streams;
use bulkhead_core::cpu::power::{Power, Restarts};
use bulkhead_core::devices::pl011::Pl011;
use bulkhead_core::devices::pl031::Pl031;
use bulkhead_core::devices::vtime::VirtualTime;
use bulkhead_core::devices::watchdog::Watchdog;
use bulkhead_core::sched::{Limits, VcpuLocation};
use bulkhead_core::vgic::{Distributor, Notify};

use crate::hw::claim::Claim;
use crate::hw::gic;
use crate::hw::state::vm_page;
use crate::plan::id_of;

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
    pub paused_vcpus: AtomicU32,
    /// VMs that have ended and of which it has not heard yet, a bit for each.
    pub events: AtomicU64,
    /// Why it ended the last time ([`bulkhead_core::cpu::power::End`] as number).
    pub last_end: AtomicU32,
    /// What its pCPUs have still to do about its end: bits of [`mod@after`].
    pub after: AtomicU32,
    /// How often it has been started.
    life: AtomicU32,
    /// Those of its pCPUs that have not yet said what they have to say about its end.
    pub unsaid: AtomicU32,
    /// The virtual SPI behind each physical SPI from 32 on, 0 for none.
    vintids: [AtomicU16; MAX_SPIS as usize],
}

/// Bits of [`Vm::after`].
pub mod after {
    /// The VM has ended for good; each of its vCPUs says its statistics.
    pub const REPORT: u32 = 1;
    /// The VM starts again; for its boot vCPU.
    pub const START: u32 = 2;
    /// The reason of its end has been said.
    pub const REPORTED: u32 = 4;
    /// It ended by a crash after which it starts again.
    pub const RETRY: u32 = 8;
}

/// [`Vm::events`] has a bit for each.
const _: () = assert!(MAX_VMS <= u64::BITS as usize);

/// VMs whose vCPUs have not all stopped and said their report.
static RUNNING: AtomicU32 = AtomicU32::new(0);

impl Vm {
    /// Links a physical SPI to a virtual one.
    pub fn link(&self, vintid: u32, pintid: u32, edge: bool) {
        self.dist.link(vintid, pintid, edge);
        if let Some(slot) = self.vintids.get(pintid.wrapping_sub(32) as usize) {
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
    pub fn vintid_of(&self, pintid: u32) -> Option<u32> {
        let slot = self.vintids.get(pintid.wrapping_sub(32) as usize)?;
        Some(u32::from(slot.load(Ordering::Relaxed))).filter(|vintid| *vintid != 0)
    }
}

/// The shared state of the VM `index` of the plan.
#[inline(always)]
pub fn vm(index: usize) -> &'static Vm {
    vm_page(index)
}

/// Where each vCPU is.
pub static VCPU_LOCATION: VcpuLocation = VcpuLocation::new();

/// What vCPUs may have now. Changed by the pCPU that serves the console, which tells their pCPUs.
pub static LIMITS: Limits = Limits::new();

/// Makes the pCPUs of vCPUs look at their interrupts.
pub fn notify(vm: usize, whom: Notify) {
    for vcpu in whom.iter() {
        if let Some(id) = id_of(vm, vcpu) {
            gic::send(gic::SIBLING, VCPU_LOCATION.of(id));
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
