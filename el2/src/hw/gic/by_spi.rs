//! The targets of pCPUs that are called by SPIs, among those of SGIs.

use super::call_spis::set_pending;
use super::revoke;

/// The flag of a target that is called by SPIs: the first SPI is in bits 8 to 17, and the number of
/// the pCPU in the lowest bits.
pub(super) const BY_SPI: u64 = 1 << 63;

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
    let poke = || set_pending(intid);
    if !revoke::revoke(target as usize & 7, poke) {
        poke();
    }
}
