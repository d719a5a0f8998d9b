//! pCPUs, and the vCPUs that run on them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A physical CPU that EL2 brings up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Pcpu {
    /// Affinity fields of its MPIDR_EL1, everything else 0.
    pub mpidr: u64,
    /// 1 on exactly one pCPU: it drains the console. 0 elsewhere.
    pub service: u16,
    /// First of two SPIs of its own by which other pCPUs call it, where a VM may send any SGI ([`InterruptMode::GpptPmrDirect`]),
    /// or where the pCPU is that of a VM in the mode [`InterruptMode::GpptRevocable`] or one like it;
    /// 0: they call it by SGIs.
    pub call_spi: u16,
    /// INTID of the interrupt of its performance monitors, a PPI or an SPI of its own; 0 if no vCPU with a budget of events or with performance monitors
    /// runs here.
    pub pmu_intid: u32,
    /// Address to which EL2 writes the one at which the CPU begins, if the CPU waits for that (`spin-table`);
    /// 0: the firmware starts it (PSCI).
    pub release: u64,
    /// Number of the cache by whose colours memory is divided: the last one on the way to memory. pCPUs with the same number share it.
    pub cache: u16,
    /// Level of that cache where the board's tree tells of it: EL2 compares its colours with what the CPU says of a cache of that level (CCSIDR_EL1),
    /// if it has one. 0: nothing is compared, as the description says how many there are.
    pub cache_level: u16,
    /// Colours of that cache, from 2 to [`MAX_COLOURS`](super::MAX_COLOURS), a power of two; 0, as the two before, if nothing keeps to colours.
    pub colours: u32,
}

/// Part of its pCPU that a vCPU may have, as number in [`Vcpu::policy`] (`docs/adr/0014-cpu-time.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum CpuPolicy {
    /// All of it: the pCPU has no other vCPU.
    Pinned = 0,
    /// A budget in each period, before all fair ones.
    Server = 1,
    /// A share of what is left, by weight, perhaps with a cap.
    Fair = 2,
}

/// A virtual CPU. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Vcpu {
    /// Index of its VM.
    pub vm: u16,
    /// Index of the pCPU on which it runs; of a fair one, at first.
    pub pcpu: u16,
    /// [`CpuPolicy`]
    pub policy: u16,
    /// Fair: 1 to [`MAX_WEIGHT`]. Others: 0.
    pub weight: u16,
    /// Affinity fields that the guest sees in MPIDR_EL1: the number of the vCPU in its VM, from 0, in
    /// the order of the rows.
    pub mpidr: u64,
    /// Server: budget, at least 1. Fair: most in each period, at least 1; equal to it for no cap. Pinned: 0.
    pub budget: u64,
    /// Server: period. Fair: that of the cap. [`MIN_PERIOD`] to [`MAX_PERIOD`]. Pinned: 0.
    pub period: u64,
    /// Fair: pCPUs onto which the load balancer may move it, a bit for each by index, its own included. Others: 0.
    pub pool: u32,
    /// Most events of [`Board::event`] that it may bring about at EL1 and EL0 in each `events_period`, up to [`MAX_EVENTS`]; 0 for no limit.
    pub events: u32,
    /// [`MIN_PERIOD`] to [`MAX_PERIOD`]; 0 if there is no limit.
    pub events_period: u64,
}
