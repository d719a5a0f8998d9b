//! How a VM gets its interrupts, and EL2 its pCPU back.

/// Way in which a VM gets its interrupts, as number in [`Vm::interrupts`](super::Vm::interrupts).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum InterruptMode {
    /// Through the virtual GIC: an exit for each.
    Vgic = 0,
    /// Physical interrupts taken at EL1. GICv3 whose security is off (GICD_CTLR.DS): EL2's kick is a Group 0
    /// interrupt, which EL1 cannot mask. What the guest masks by PMR masks nothing.
    GpptRecoverable = 1,
    /// Taken at EL1, GICv3. Accesses to PMR and to the other common registers trap.
    GpptPmrTrapped = 2,
    /// Taken at EL1, GICv3. PMR is the physical one, and SGIs are sent without EL2: no other VM is like this, and EL2 uses no
    /// SGIs ([`Pcpu::call_spi`](super::Pcpu::call_spi)).
    GpptPmrDirect = 3,
    /// Taken at EL1, GICv2: the VM maps the CPU interface.
    GpptV2 = 4,
    /// As [`Self::GpptRecoverable`] to the guest, also where Group 0 is the firmware's: EL2's interrupts are in Group 1 like
    /// the guest's, and it takes stage 2 away before it sends one ([`Pcpu::call_spi`](super::Pcpu::call_spi)).
    GpptRevocable = 5,
    /// As [`Self::GpptPmrTrapped`] to the guest, else as [`Self::GpptRevocable`].
    GpptRevocableTrapped = 6,
}

/// Way in which EL2 gets back the pCPU of a VM that takes interrupts at EL1, as number in
/// [`Vm::reclaim`](super::Vm::reclaim).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Reclaim {
    /// Regardless of what the VM does: the mode itself sees to that.
    Always = 0,
    /// Its WFI traps: EL2 waits on its behalf, with its own masks open.
    Guaranteed = 1,
    /// Not while it sleeps with its masks closed; then only a reset of the board helps.
    Cooperative = 2,
    /// By an event of the board's firmware (SDEI), which nothing at EL1 masks.
    Sdei = 3,
}

/// [`Vm::flags`](super::Vm::flags): its vCPUs have performance monitors, whose interrupt is the PPI [`VM_PMU_INTID`]. Not of VMs that take their interrupts
/// themselves, since EL2 is told of overflows. From the profile [`Io`](super::Profile::Io) on.
pub const VM_PMU: u16 = 256;
/// The interrupt of a vCPU's performance monitors.
pub const VM_PMU_INTID: u32 = 23;
