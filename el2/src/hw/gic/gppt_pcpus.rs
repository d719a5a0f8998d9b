//! The pCPUs of GPPT VMs.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The pCPUs of GPPT VMs, one bit for each.
static THERE: AtomicU32 = AtomicU32::new(0);

/// The pCPUs of [`THERE`] that are reclaimed by events.
static EVENTS: AtomicU32 = AtomicU32::new(0);

/// Sets the pCPUs of GPPT VMs, one bit for each: those that are reclaimed by a Group 0 interrupt,
/// and those that are reclaimed by events.
pub(super) fn set(which: u32, events: u32) {
    THERE.store(which | events, Relaxed);
    EVENTS.store(events, Relaxed);
}

/// Whether pCPU `index` is reclaimed by events.
pub fn has_events(index: usize) -> bool {
    EVENTS.load(Relaxed) >> (index & 31) & 1 != 0
}

/// Whether pCPU `index` runs a GPPT VM.
pub fn has_gppt_vm(index: usize) -> bool {
    THERE.load(Relaxed) >> (index & 31) & 1 != 0
}
