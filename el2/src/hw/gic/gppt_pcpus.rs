//! The pCPUs of GPPT VMs.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The pCPUs of GPPT VMs, one bit for each, by the way in which EL2 reclaims them.
#[derive(Clone, Copy, Debug, Default)]
pub struct GpptPcpus {
    /// By an interrupt of Group 0.
    pub group0: u32,
    /// By an event of the firmware.
    pub events: u32,
    /// By revoke and poke, where the guest and EL2 share Group 1.
    pub shared: u32,
}

/// The pCPUs of GPPT VMs, one bit for each.
static THERE: AtomicU32 = AtomicU32::new(0);

/// The pCPUs of [`THERE`] that are reclaimed by events.
static EVENTS: AtomicU32 = AtomicU32::new(0);

/// The pCPUs of [`THERE`] where the guest and EL2 share Group 1.
static SHARED: AtomicU32 = AtomicU32::new(0);

/// Sets the pCPUs of GPPT VMs.
pub(super) fn set(pcpus: GpptPcpus) {
    let all = pcpus.group0 | pcpus.events | pcpus.shared;
    THERE.store(all, Relaxed);
    EVENTS.store(pcpus.events, Relaxed);
    SHARED.store(pcpus.shared, Relaxed);
}

/// Whether the guest and EL2 share Group 1 on pCPU `index`.
pub fn shares_group1(index: usize) -> bool {
    SHARED.load(Relaxed) >> (index & 31) & 1 != 0
}

/// Whether pCPU `index` is reclaimed by events.
pub fn has_events(index: usize) -> bool {
    EVENTS.load(Relaxed) >> (index & 31) & 1 != 0
}

/// Whether pCPU `index` runs a GPPT VM.
pub fn has_gppt_vm(index: usize) -> bool {
    THERE.load(Relaxed) >> (index & 31) & 1 != 0
}
