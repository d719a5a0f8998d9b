//! SPIs by which pCPUs call each other where EL2's SGIs are a guest's or the firmware's: two for a
//! pCPU, in place of the SGIs [`SIBLING`] and [`KICK`].

use super::super::layout::shared;
use super::super::mmio::Registers;
use super::super::mmu;
use super::super::plan::plan;
use super::super::sysreg::dsb;
use super::registers::{KICK, SIBLING, bank, configure};

const _: () = assert!(SIBLING & 1 == 0 && KICK == SIBLING + 1);

/// The distributor as all pCPUs map it, where they call each other by SPIs.
const GICD: Registers = mmu::shared_frame(shared::GICD, shared::GICD_PAGES);

/// Returns the first of the two SPIs by which pCPU `index` is called.
pub(super) fn call_spi(index: usize) -> Option<u32> {
    let row = plan().pcpus.get(index)?;
    (row.call_spi != 0).then_some(u32::from(row.call_spi))
}

/// Whether SPIs call pCPU `index`.
#[cfg(feature = "gicv2")]
pub fn is_called(index: usize) -> bool {
    call_spi(index).is_some()
}

/// Returns the SPI that replaces [`KICK`] on pCPU `index`.
pub(super) fn kick_spi(index: usize) -> Option<u32> {
    call_spi(index).map(|first| first.wrapping_add(1))
}

/// Returns the SGI that an SPI replaces on pCPU `index`; any other interrupt stands for itself.
pub fn meaning(index: usize, intid: u32) -> u32 {
    match call_spi(index) {
        Some(first) if intid.wrapping_sub(first) < 2 => {
            SIBLING.wrapping_add(intid.wrapping_sub(first))
        }
        _ => intid,
    }
}

/// Returns the INTID by which a vCPU notifies a sibling on pCPU `index`.
pub fn sibling_intid(index: usize) -> u32 {
    call_spi(index).unwrap_or(SIBLING)
}

/// Writes the bit of an SPI in a bank. The write has arrived when this returns: the register is read behind it.
#[inline(never)]
fn write(gicd: Registers, bank: u64, intid: u32) {
    let word = bank.wrapping_add(u64::from(intid / 32).wrapping_mul(4));
    let bit = 1 << (intid % 32);
    gicd.write(word, bit);
    gicd.read(word);
}

/// Makes an SPI pending, before this returns.
pub(super) fn set_pending(intid: u32) {
    write(GICD, bank::SET_PENDING, intid);
    dsb();
}

/// Makes an SPI no longer pending.
pub(super) fn clear_pending(intid: u32) {
    write(GICD, bank::CLEAR_PENDING, intid);
}

/// Starts the SPIs, if the plan has them; `give` routes one to a pCPU. Called by the boot pCPU.
pub(super) fn start(gicd: Registers, give: impl Fn(u32, usize)) {
    let mut any = false;
    let pcpus = 0..plan().pcpus.len();
    for (index, first) in pcpus.filter_map(|index| Some((index, call_spi(index)?))) {
        any = true;
        for intid in [first, first.wrapping_add(1)] {
            configure(gicd, intid, true);
            give(intid, index);
            write(gicd, bank::ENABLE, intid);
        }
    }
    if any {
        mmu::share_frame(shared::GICD, plan().header.board.gicd, shared::GICD_PAGES);
    }
}
