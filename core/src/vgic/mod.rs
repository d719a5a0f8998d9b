//! The virtual GIC of a VM, version 2 or 3, for up to eight vCPUs, without a lock
//! (`docs/adr/0004-interrupt-ownership.md`, `docs/adr/0008-several-vcpus.md`).
//!
//! | state | where | who writes |
//! | --- | --- | --- |
//! | configuration, latches, lines, requests, tickets | [`Distributor`]: atomic words of the VM | any pCPU of the VM |
//! | ready-made list register entries, what is active but in no list register | [`Cpu`] | its pCPU |
//! | what the guest is about to take or has taken | list registers | the hardware, and its pCPU in an exit |
//!
//! Nothing here touches a register: list registers and the physical GIC come as a [`Host`], and who else has
//! to look comes back as a [`Notify`].
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

/// vCPUs that a VM may have.
pub const VCPUS: usize = 8;
/// 32-bit words that hold a bit for each INTID from 0 to 287: word 0 is private to each vCPU, words 1 to 8
/// are the VM's SPIs.
pub const WORDS: usize = 9;
/// INTIDs of a vCPU.
const INTIDS: usize = WORDS * 32;
/// Bytes of the distributor frame of a GICv3. That of a GICv2 has 0x1000.
pub const GICD_SIZE: u64 = 0x1_0000;
/// Bytes of the two redistributor frames of one vCPU.
pub const GICR_SIZE: u64 = 0x2_0000;
/// INTID of the EL1 virtual timer in every VM (BSA: PPI 27).
pub const VTIMER: u32 = 27;
/// The list register that belongs to the virtual timer. The interrupt is level-sensitive and
/// hardware-backed by hardware: while a list register holds it, the physical one is active and cannot fire again,
/// so this one is always free when it fires and need not be looked for.
pub const VTIMER_LR: u32 = 0;
/// Bits of a priority that exist: five, as the list registers of every GIC that EL2 runs on have them.
pub const PRIORITY_BITS: u8 = 0xf8;

/// Which architecture the guest sees. It is that of the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// IHI 0048B: banked word 0, `GICD_ITARGETSR`, `GICD_SGIR`.
    V2,
    /// IHI 0069H with affinity routing and one Security state: redistributors, `GICD_IROUTER`, `ICC_SGI1R_EL1`.
    V3,
}

/// vCPUs of a VM, a bit for each, that have to call [`Cpu::on_notify`] soon. EL2 sends each of them the SGI for
/// siblings. vCPUs that are off are never in it; one that starts looks by itself ([`Cpu::reset`]).
#[must_use]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notify(pub u8);

impl Notify {
    /// Nobody has to look.
    pub const NOBODY: Self = Self(0);

    /// Whether nobody has to look.
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The numbers of the vCPUs, lowest first.
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

/// What an access to a register gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The access is done; a read has this value, a write 0.
    Value(u64),
    /// Another vCPU has to answer first: leave ELR where it is, open interrupts, let the guest repeat the
    /// access. Nothing waits at EL2.
    Again,
}

/// What a vCPU wants to be told by a maintenance interrupt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintenance {
    /// Something waits for a list register: tell when no list register is pending any more
    /// (ICH_HCR_EL2.NPIE), and when the guest switches a group of its CPU interface on or off (of
    /// VGrp0EIE, VGrp0DIE and so on, those that are opposite to ICH_VMCR_EL2 as it is).
    pub refill: bool,
    /// An active interrupt is in no list register: tell when the guest ends one that is not there
    /// (ICH_HCR_EL2.LRENPIE).
    pub eoi: bool,
}

/// The interrupt hardware of the pCPU that runs the vCPU. Methods that name a physical interrupt below 32
/// mean this pCPU's own.
pub trait Host {
    /// The architecture of the board and so of the guest: constant, so that the hot paths have no choice
    /// to make at run time.
    const VERSION: Version;
    /// How many list registers there are (1 to 16).
    fn list_registers(&self) -> u32;
    /// A bit for each list register but [`VTIMER_LR`].
    fn usable(&self) -> u32;
    /// ICH_LR\<n\>_EL2, or GICH_LR\<n\> in that format ([`lr`]).
    fn lr(&self, n: u32) -> u64;
    /// Writes ICH_LR\<n\>_EL2, or GICH_LR\<n\>.
    fn set_lr(&mut self, n: u32, value: u64);
    /// ICH_ELRSR_EL2, or GICH_ELRSR: a bit for each list register that holds nothing. One whose interrupt has
    /// ended and which asked to be told ([`lr::EOI`]) is not empty until it is written.
    fn empty(&self) -> u32;
    /// Takes ICH_HCR_EL2.EOIcount, or that of GICH_HCR: reads it and sets it to zero.
    fn eoi_count(&mut self) -> u32;
    /// Groups that the guest's CPU interface signals: bit 0 for group 0, bit 1 for group 1
    /// (ICH_VMCR_EL2.VENG0 and VENG1, GICH_VMCR.VMGrp0En and VMGrp1En).
    fn groups(&self) -> u32;
    /// Asks for maintenance interrupts.
    fn ask(&mut self, what: Maintenance);
    /// Lets the physical interrupt be signalled.
    fn enable(&mut self, pintid: u32);
    /// Keeps the physical interrupt from being signalled; returns when that is in effect.
    fn disable(&mut self, pintid: u32);
    /// Deactivates the physical interrupt (ICC_DIR_EL1, GICC_DIR).
    fn deactivate(&mut self, pintid: u32);
    /// Makes the physical interrupt active, so that it is not signalled until it is deactivated
    /// (GICD_ISACTIVER, GICR_ISACTIVER0).
    fn set_active(&mut self, pintid: u32);
    /// Sets or clears the pending state of the physical interrupt.
    fn set_pending(&mut self, pintid: u32, pending: bool);
    /// The physical interrupt is pending.
    fn is_pending(&self, pintid: u32) -> bool;
    /// The physical SPI goes to the pCPU of this vCPU from now on.
    fn route(&mut self, pintid: u32, vcpu: usize);
}

/// A VM has stopped, and each of its vCPUs has left ([`Cpu::leave`]): disables, un-pends and deactivates all
/// physical SPIs behind its own.
pub fn shutdown(dist: &Distributor, host: &mut impl Host) {
    dist.shutdown(host);
}

/// Word and bit of an INTID.
#[inline(always)]
const fn place(intid: u32) -> (usize, u32) {
    ((intid / 32) as usize, 1 << (intid % 32))
}

/// The bit of a word of interrupts, or of a vCPU, in a mask of those.
#[inline(always)]
const fn mask(n: usize) -> u32 {
    1u32.wrapping_shl(n as u32)
}

/// Interrupts of the set bits of a word, lowest first.
#[inline(always)]
const fn each(word: usize, bits: u32) -> Each {
    Each {
        first: (word as u32).wrapping_mul(32),
        rest: bits,
    }
}

/// See [`each`].
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

/// Numbers of the set bits: words of a mask of words, list registers, vCPUs.
#[inline(always)]
fn numbers(bits: u32) -> impl Iterator<Item = usize> {
    each(0, bits).map(|n| n as usize)
}
