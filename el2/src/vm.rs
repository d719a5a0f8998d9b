//! What the pCPUs share about a VM: one page for each, made of atomics.

use core::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use bulkhead_abi::plan::MAX_SPIS;
use bulkhead_core::console::Streams;
use bulkhead_core::vgic::Distributor;

use crate::hw::boot::vm_page;

/// The shared state of a VM.
#[derive(Debug)]
#[repr(C)]
pub struct Vm {
    /// Its console.
    pub streams: Streams,
    /// Configuration of its interrupts.
    pub dist: Distributor,
    /// The virtual SPI behind each physical SPI from 32 on, 0 for none.
    behind: [AtomicU16; MAX_SPIS as usize],
}

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

/// Start-up says how many VMs there are.
pub fn set_running(count: u32) {
    RUNNING.store(count, Ordering::Relaxed);
}

/// A VM has stopped and everything about it has been said; `true` for the last.
pub fn one_less() -> bool {
    RUNNING.fetch_sub(1, Ordering::AcqRel) == 1
}

/// No VM runs any more.
pub fn all_stopped() -> bool {
    RUNNING.load(Ordering::Acquire) == 0
}
