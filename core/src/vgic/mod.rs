//! The virtual GICv3: one distributor for each VM, one redistributor and the pending and active state
//! for each vCPU (`docs/adr/0004-interrupt-ownership.md`).
//!
//! | state | where | who writes |
//! | --- | --- | --- |
//! | configuration of SPIs (enable, group, priority, trigger) | [`Distributor`], atomic words of the VM | any vCPU of the VM |
//! | configuration of SGIs and PPIs | [`Cpu`] | its pCPU |
//! | pending, active, line level | [`Cpu`] of the vCPU that the interrupt targets | its pCPU |
//! | what the guest is about to take or has taken | list registers | the hardware, and its pCPU in an exit |
//!
//! Nothing here touches a register: list registers and the physical GIC come as a [`Host`].
//! Source: IHI 0069H, chapters 2, 4, 8 and 12.

mod bank;
mod cpu;
mod distributor;
pub mod gich;
pub mod lr;
mod redistributor;
#[cfg(test)]
mod tests;

pub use cpu::Cpu;
pub use distributor::Distributor;

/// 32-bit words that hold a bit for each INTID from 0 to 287.
pub const WORDS: usize = 9;
/// Bytes of the distributor frame.
pub const GICD_SIZE: u64 = 0x1_0000;
/// Bytes of the two redistributor frames of a vCPU.
pub const GICR_SIZE: u64 = 0x2_0000;
/// INTID of the EL1 virtual timer in every VM (BSA: PPI 27).
pub const VTIMER: u32 = 27;
/// The list register that belongs to the virtual timer. The interrupt is level-sensitive and
/// hardware-linked: while the register holds it, the physical one is active and cannot fire again,
/// so the register is always free when it fires and need not be looked for.
pub const VTIMER_LR: u32 = 0;

/// `GICD_IIDR` and `GICR_IIDR`: no implementer, product 'B', revision 1.
const IIDR: u32 = 0x4200_1000;
/// `GICD_PIDR2` and `GICR_PIDR2`: GIC architecture version 3.
const PIDR2: u32 = 0x3b;

/// The interrupt hardware of the pCPU that runs the vCPU.
pub trait Host {
    /// How many list registers there are (1 to 16).
    fn list_registers(&self) -> u32;
    /// A bit for each list register but that of the virtual timer.
    fn usable(&self) -> u32;
    /// ICH_LR\<n\>_EL2.
    fn lr(&self, n: u32) -> u64;
    /// Writes ICH_LR\<n\>_EL2.
    fn set_lr(&mut self, n: u32, value: u64);
    /// ICH_ELRSR_EL2: a bit for each list register that holds nothing.
    fn empty(&self) -> u32;
    /// ICH_HCR_EL2.UIE: ask for a maintenance interrupt when list registers run empty.
    fn ask_refill(&mut self, on: bool);
    /// Lets the physical interrupt be signalled.
    fn enable(&mut self, pintid: u32);
    /// Keeps the physical interrupt from being signalled; returns when that is in effect.
    fn disable(&mut self, pintid: u32);
    /// Deactivates the physical interrupt (ICC_DIR_EL1).
    fn deactivate(&mut self, pintid: u32);
    /// Sets or clears the pending state of the physical interrupt.
    fn set_pending(&mut self, pintid: u32, pending: bool);
    /// The physical interrupt is pending.
    fn is_pending(&self, pintid: u32) -> bool;
}

/// Word and bit of an INTID.
#[inline(always)]
const fn place(intid: u32) -> (usize, u32) {
    ((intid / 32) as usize, 1 << (intid % 32))
}
