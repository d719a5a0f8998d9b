//! The registers that a GICv2 and a GICv3 have in common, EL2's SGIs, and the encoding of a pCPU as
//! the target of an SGI.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bulkhead_abi::plan::MAX_PCPUS;

use super::super::mmio::Registers;
use super::super::sysreg::dsb;

/// The bits of an acknowledged interrupt that are the INTID. A GICv2 adds the sender of an SGI (IHI
/// 0048B, 4.4.4).
#[cfg(feature = "gicv2")]
const INTID: u32 = 0x3ff;
/// The bits of an acknowledged interrupt that are the INTID: ICC_IAR1_EL1 has no others.
#[cfg(not(feature = "gicv2"))]
const INTID: u32 = u32::MAX;
/// The SGI by which pCPUs make each other look into their mailboxes. Below 8: firmware reserves
/// SGIs 8 to 15 for the Secure side (BSA), and where there is a Secure side they cannot even be
/// enabled.
pub const KICK: u32 = 7;
/// The SGI by which a vCPU notifies a sibling, which then looks at its interrupts.
pub const SIBLING: u32 = 6;
/// The SGI that replaces [`KICK`] on the pCPU of a GPPT VM. The VM has SGIs 0 to 7, and EL2 takes
/// the place of the Secure side.
pub const GPPT_KICK: u32 = 15;

/// The first INTID that means that there was no interrupt to acknowledge.
pub(super) const SPECIAL: u32 = 1020;
/// The priority of all physical interrupts: EL2 takes them in the order in which they arrive.
pub(super) const PRIORITY: u32 = 0x8080_8080;
/// The number of times that EL2 polls for the effect of a register write; hardware needs a few.
pub(super) const PATIENCE: u32 = 1_000;

/// Banks of the distributor with a bit for each interrupt (IHI 0048B.b, 4.3; IHI 0069H, 12.9).
pub(super) mod bank {
    pub const GROUP: u64 = 0x80;
    pub const ENABLE: u64 = 0x100;
    pub const DISABLE: u64 = 0x180;
    pub const SET_PENDING: u64 = 0x200;
    pub const CLEAR_PENDING: u64 = 0x280;
    pub const SET_ACTIVE: u64 = 0x300;
    pub const CLEAR_ACTIVE: u64 = 0x380;
}
/// Priorities, a byte for each interrupt.
pub(super) const IPRIORITYR: u64 = 0x400;
/// Triggers, two bits for each interrupt.
pub(super) const ICFGR: u64 = 0xc00;

/// ICH_HCR_EL2 and GICH_HCR: the virtual interface is on.
pub(super) const HCR_ENABLE: u32 = 1;
/// Maintenance interrupt while no list register is pending (NPIE).
pub(super) const HCR_NONE_PENDING: u32 = 1 << 3;
/// Maintenance interrupt while EOIcount is not 0 (LRENPIE).
pub(super) const HCR_NOT_PRESENT: u32 = 1 << 2;
/// EOIcount: ends of interrupts that were in no list register.
pub(super) const HCR_EOI_COUNT: u32 = 31 << 27;

/// An acknowledged interrupt in the form that the CPU interface wants back. On a GICv2 it includes
/// the sender of an SGI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Taken(pub(super) u32);

impl Taken {
    /// No interrupt.
    pub const NOTHING: Self = Self(SPECIAL);

    /// Returns the INTID.
    #[inline(always)]
    pub const fn intid(self) -> u32 {
        self.0 & INTID
    }

    /// Whether there was no interrupt to acknowledge.
    #[inline(always)]
    pub const fn is_nothing(self) -> bool {
        self.intid() >= SPECIAL
    }
}

/// The encoding of each pCPU as the target of an SGI; 0 while it is not known.
static TARGETS: [AtomicU64; MAX_PCPUS] = [const { AtomicU64::new(0) }; MAX_PCPUS];

/// Sets the target of a pCPU.
pub(super) fn set_target(pcpu: usize, target: u64) {
    if let Some(place) = TARGETS.get(pcpu) {
        place.store(target, Relaxed);
    }
}

pub(super) fn target(pcpu: usize) -> u64 {
    const _: () = assert!(MAX_PCPUS == 8);
    TARGETS[pcpu & 7].load(Relaxed)
}

/// Returns the running priority from the active priorities bits, for five bits of priority: the
/// lowest bit is the most urgent.
pub(super) fn running(active: u32) -> u64 {
    u64::from(active.trailing_zeros()) << 3
}

pub(super) fn settled(done: impl Fn() -> bool) {
    for _ in 0..PATIENCE {
        if done() {
            return;
        }
    }
}

/// Orders the acknowledge of an interrupt before every load that follows. What another pCPU stored
/// before it sent the interrupt is only then seen: a load may be done before a read of IAR that
/// precedes it, by memory or by register (IHI 0069H, observability of the effects of reads of
/// ICC_IAR1_EL1; DDI 0487, DSB).
#[inline(always)]
pub fn order_acknowledge() {
    dsb();
}

/// Disables, un-pends and deactivates the interrupts of a word of 32, and gives them all one
/// priority. `frame` has the banks from `at` on.
pub(super) fn silence(frame: Registers, at: u64, word: u64) {
    let bits = at.wrapping_add(word.wrapping_mul(4));
    frame.write(bits.wrapping_add(bank::DISABLE), u32::MAX);
    frame.write(bits.wrapping_add(bank::CLEAR_PENDING), u32::MAX);
    frame.write(bits.wrapping_add(bank::CLEAR_ACTIVE), u32::MAX);
    let bytes = at.wrapping_add(word.wrapping_mul(32));
    frame.fill(bytes.wrapping_add(IPRIORITYR), 8, PRIORITY);
}

/// Returns how many words of 32 interrupts a distributor has (GICD_TYPER.ITLinesNumber).
pub(super) fn words(gicd: Registers) -> u64 {
    u64::from(gicd.read(4) & 31).saturating_add(1)
}

/// Configures the trigger of an SPI. Sixteen SPIs share a register, so the boot pCPU does it for
/// all SPIs before another pCPU runs.
pub fn configure(gicd: Registers, intid: u32, edge: bool) {
    let n = u64::from(intid);
    let at = ICFGR.wrapping_add(n / 16 * 4);
    let bit = 2u32 << (n % 16 * 2);
    let config = gicd.read(at);
    gicd.write(at, if edge { config | bit } else { config & !bit });
}

/// The saved virtual interface of a vCPU while another vCPU has the pCPU. All zeros: disabled and
/// empty.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct VirtualInterface {
    /// ICH_HCR_EL2 or GICH_HCR.
    pub(super) control: u32,
    /// ICH_VMCR_EL2 or GICH_VMCR.
    pub(super) machine: u32,
    /// The active priorities of Group 0 and of Group 1, four words of each. A GICv2 has the first
    /// word only.
    pub(super) active: [u32; 8],
    pub(super) list: [u64; 16],
}
