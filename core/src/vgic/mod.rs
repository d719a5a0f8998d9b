//! The virtual GIC, version 2 or 3, of a VM with up to eight vCPUs, without locks
//! (`docs/adr/0004-interrupt-ownership.md`, `docs/adr/0008-several-vcpus.md`).
//!
//! | state | where | who writes |
//! | --- | --- | --- |
//! | configuration, latches, lines, requests, tickets | [`Distributor`]: atomic words of the VM | any pCPU of the VM |
//! | precomputed list register entries, spilled interrupts (active but in no list register) | [`Cpu`] | the pCPU that runs the vCPU |
//! | interrupts that the guest is about to take or has taken | list registers | the hardware, and that pCPU during an exit |
//!
//! This module accesses no hardware register: it reaches the list registers and the physical GIC
//! through the trait [`Host`], and returns the vCPUs that have to be notified as a [`Notify`].
//!
//! Sources: IHI 0048B (GICv2), chapters 3 to 5; IHI 0069H (GICv3), chapters 2, 4, 8, 11 and 12.

mod bits;
mod cpu;
mod distributor;
mod fastpath;
mod fill;
mod gicd;
pub mod gich;
mod gicr;
pub mod lr;
mod planes;
mod priorities;
mod query;
mod sgi;
mod shared;
mod spill;
mod sync;
#[cfg(test)]
mod tests;
mod words;

pub use cpu::Cpu;
pub use distributor::Distributor;
pub(crate) use gicd::{IIDR, identification, spread};

/// The maximum number of vCPUs of a VM.
pub const VCPUS: usize = 8;
/// The number of 32-bit words that hold a bit for each INTID from 0 to 287: word 0 holds the SGIs
/// and PPIs of a vCPU, words 1 to 8 hold the SPIs of the VM.
pub const WORDS: usize = 9;
/// The number of INTIDs that a vCPU can see.
const INTIDS: usize = WORDS * 32;
/// The size in bytes of the distributor frame of a GICv3. The frame of a GICv2 has 0x1000.
pub const GICD_SIZE: u64 = 0x1_0000;
/// The size in bytes of the two redistributor frames of one vCPU.
pub const GICR_SIZE: u64 = 0x2_0000;
/// The INTID of the EL1 virtual timer in every VM (BSA: PPI 27).
pub const VTIMER: u32 = 27;
/// The list register that is reserved for the virtual timer. The timer interrupt is level-sensitive
/// and backed by a physical interrupt: while it is in a list register, the physical interrupt is
/// active and cannot fire again. So this list register is always free when the timer fires, and no
/// search for a free one is needed.
pub const VTIMER_LR: u32 = 0;
/// The bits of a priority that exist: the upper five, as in the list registers of every GIC that
/// EL2 runs on.
pub const PRIORITY_BITS: u8 = 0xf8;

/// The GIC architecture that the guest sees, which is that of the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// IHI 0048B: banked word 0, `GICD_ITARGETSR`, `GICD_SGIR`.
    V2,
    /// IHI 0069H with affinity routing and one Security state: redistributors, `GICD_IROUTER`,
    /// `ICC_SGI1R_EL1`.
    V3,
}

/// A set of vCPUs of a VM, a bit for each, that have to call [`Cpu::on_notify`] soon. EL2 sends
/// each of them the SGI for siblings. A vCPU that is off is never in this set; a vCPU that starts
/// checks by itself what others have left for it ([`Cpu::reset`]).
#[must_use]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notify(pub u8);

impl Notify {
    /// No vCPU has to be notified.
    pub const NOBODY: Self = Self(0);

    /// Whether no vCPU has to be notified.
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Iterates over the numbers of the vCPUs, lowest first.
    #[inline(always)]
    pub fn iter(self) -> impl Iterator<Item = usize> {
        numbers(u32::from(self.0))
    }
}

impl core::ops::BitOr for Notify {
    type Output = Self;
    #[inline(always)]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl core::ops::BitOrAssign for Notify {
    #[inline(always)]
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// The result of a register access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The access is done. The value is that of a read; 0 for a write.
    Value(u64),
    /// Another vCPU has to answer first: EL2 leaves ELR unchanged and unmasks interrupts, and the
    /// guest repeats the access. EL2 does not wait.
    Again,
}

/// The reasons for which a vCPU requests maintenance interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintenance {
    /// An interrupt waits for a list register. The maintenance interrupt is requested for when no
    /// list register is pending any more (ICH_HCR_EL2.NPIE), and for when the guest enables or
    /// disables a group of its CPU interface (of VGrp0EIE, VGrp0DIE and so on, those opposite to
    /// the current state in ICH_VMCR_EL2).
    pub refill: bool,
    /// An interrupt is spilled (active but in no list register). The maintenance interrupt is
    /// requested for when the guest ends an interrupt that is in no list register
    /// (ICH_HCR_EL2.LRENPIE).
    pub eoi: bool,
}

/// The interrupt hardware of the pCPU that runs the vCPU. A physical INTID below 32 means the SGI
/// or PPI of this pCPU.
pub trait Host {
    /// The GIC architecture of the board and so of the guest. It is a constant, so that the hot
    /// paths have no choice to make at run time.
    const VERSION: Version;
    /// Returns the number of list registers (1 to 16).
    fn list_registers(&self) -> u32;
    /// Returns a bit for each list register but [`VTIMER_LR`].
    fn usable(&self) -> u32;
    /// Reads ICH_LR\<n\>_EL2, or GICH_LR\<n\> converted to that format ([`lr`]).
    fn lr(&self, n: u32) -> u64;
    /// Writes ICH_LR\<n\>_EL2, or GICH_LR\<n\>.
    fn set_lr(&mut self, n: u32, value: u64);
    /// Reads ICH_ELRSR_EL2, or GICH_ELRSR: a bit for each empty list register. A list register with
    /// [`lr::EOI`] set whose interrupt has ended is not empty until it is written.
    fn empty(&self) -> u32;
    /// Reads ICH_HCR_EL2.EOIcount, or that of GICH_HCR, and sets it to zero.
    fn eoi_count(&mut self) -> u32;
    /// Returns the groups that the guest's CPU interface signals: bit 0 for group 0, bit 1 for
    /// group 1 (ICH_VMCR_EL2.VENG0 and VENG1, GICH_VMCR.VMGrp0En and VMGrp1En).
    fn groups(&self) -> u32;
    /// Requests maintenance interrupts for the reasons in `what`.
    fn ask(&mut self, what: Maintenance);
    /// Enables the physical interrupt.
    fn enable(&mut self, pintid: u32);
    /// Disables the physical interrupt; returns when that is in effect.
    fn disable(&mut self, pintid: u32);
    /// Deactivates the physical interrupt (ICC_DIR_EL1, GICC_DIR).
    fn deactivate(&mut self, pintid: u32);
    /// Makes the physical interrupt active, so that it is not signalled until it is deactivated
    /// (GICD_ISACTIVER, GICR_ISACTIVER0).
    fn set_active(&mut self, pintid: u32);
    /// Sets or clears the pending state of the physical interrupt.
    fn set_pending(&mut self, pintid: u32, pending: bool);
    /// Whether the physical interrupt is pending.
    fn is_pending(&self, pintid: u32) -> bool;
    /// Routes the physical SPI to the pCPU of `vcpu`.
    fn route(&mut self, pintid: u32, vcpu: usize);
}

/// Disables, un-pends and deactivates all physical SPIs behind the SPIs of a VM that has stopped,
/// after each of its vCPUs has called [`Cpu::leave`].
pub fn shutdown(dist: &Distributor, host: &mut impl Host) {
    dist.shutdown(host);
}

/// Returns the word and the bit of an INTID.
#[inline(always)]
const fn place(intid: u32) -> (usize, u32) {
    ((intid / 32) as usize, 1 << (intid % 32))
}

/// Returns a mask with bit `n` set: of a word, or of a vCPU.
#[inline(always)]
const fn mask(n: usize) -> u32 {
    1u32.wrapping_shl(n as u32)
}

/// Iterates over the INTIDs of the set bits of a word, lowest first.
#[inline(always)]
const fn each(word: usize, bits: u32) -> Each {
    Each {
        first: (word as u32).wrapping_mul(32),
        rest: bits,
    }
}

/// The iterator that [`each`] returns.
struct Each {
    first: u32,
    rest: u32,
}

impl Iterator for Each {
    type Item = u32;
    #[inline(always)]
    fn next(&mut self) -> Option<u32> {
        if self.rest == 0 {
            return None;
        }
        let bit = self.rest.trailing_zeros();
        self.rest &= self.rest.wrapping_sub(1);
        Some(self.first.wrapping_add(bit))
    }
}

/// Iterates over the numbers of the set bits in a mask of words, list registers or vCPUs.
#[inline(always)]
fn numbers(bits: u32) -> impl Iterator<Item = usize> {
    each(0, bits).map(|n| n as usize)
}
