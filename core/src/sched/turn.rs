//! What a scheduler decides.

/// A scheduling decision: which vCPU runs, until when, and with which traps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The vCPU that runs; `None` if all are blocked, off or throttled.
    pub slot: Option<usize>,
    /// Latest time at which [`super::Scheduler::next`] has to be called again; [`u64::MAX`]: at the next
    /// wake-up.
    pub until: u64,
    /// Whether WFI of this vCPU must trap: its sleep must not count as run time, which matters to
    /// the other vCPUs of the pCPU and to its own budget.
    pub trap_wfi: bool,
    /// Whether WFE of this vCPU must trap: another vCPU is ready, perhaps the one that holds the
    /// lock it waits for. Not set for a server, which spins in its own budget.
    pub trap_wfe: bool,
}
