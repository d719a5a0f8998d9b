//! SPIs that replace EL2's SGIs, where a GPPT VM could send any SGI.

use super::super::layout::shared;
use super::super::mmio::Registers;
use super::super::mmu;
use super::super::plan::plan;
use super::super::sysreg::dsb;
use super::registers::{SIBLING, bank};
use super::revoke;

/// The flag of a target that is called by SPIs: the first SPI is in bits 8 to 17, and the number of
/// the pCPU in the lowest bits.
pub(super) const BY_SPI: u64 = 1 << 63;
/// The distributor as all pCPUs map it, where they call each other by SPIs.
pub(super) const GICD: Registers = mmu::shared_frame(shared::GICD, shared::GICD_PAGES);

/// Returns the target of pCPU `index`, which is called by the SPIs that the plan gives it: see
/// [`BY_SPI`].
pub(super) fn by_spi(index: usize, first: u16) -> u64 {
    BY_SPI | u64::from(first) << 8 | index as u64
}

/// Makes the SPI pending that replaces an SGI, after everything that was written before. If the VM
/// of the pCPU could mask the SPI, its stage 2 is taken away first.
#[cold]
#[inline(never)]
pub(super) fn call(sgi: u32, target: u64) {
    let intid = ((target >> 8 & 0x3ff) as u32).wrapping_add(sgi & 1);
    let poke = || {
        let word = bank::SET_PENDING.wrapping_add(u64::from(intid / 32).wrapping_mul(4));
        GICD.write(word, 1 << (intid % 32));
        // The SPI is pending when the distributor answers.
        GICD.read(word);
        dsb();
    };
    if !revoke::revoke(target as usize & 7, poke) {
        poke();
    }
}

/// Returns the first of the two SPIs by which pCPU `index` is called.
pub(super) fn call_spi(index: usize) -> Option<u32> {
    let row = plan().pcpus.get(index)?;
    (row.call_spi != 0).then_some(u32::from(row.call_spi))
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
