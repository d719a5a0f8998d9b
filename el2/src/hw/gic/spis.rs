//! SPIs that are the Secure side's. Of those that no device has nobody tells whose they are, so that each is tried when the board starts.

use core::sync::atomic::{AtomicU32, Ordering};

use bulkhead_abi::plan::MAX_SPIS;

use super::registers::IPRIORITYR;
use crate::hw::mmio::Registers;

/// A bit for each SPI, from INTID 32 on, that was tried and is the Secure side's. Written while the board starts.
static SECURE: [AtomicU32; (MAX_SPIS / 32) as usize] =
    [const { AtomicU32::new(0) }; (MAX_SPIS / 32) as usize];

/// Tries an SPI to which the distributor's start has given a priority. `false`: it is the Secure side's, and reads as zero (IHI 0069H, 12.9.20
/// GICD_IPRIORITYR; IHI 0048B.b, 4.3.11).
pub fn is_nonsecure(gicd: Registers, intid: u32) -> bool {
    let word = IPRIORITYR.wrapping_add(u64::from(intid & !3));
    let byte = 0xffu32.wrapping_shl(intid % 4 * 8);
    let found = gicd.read(word) & byte != 0;
    if !found && let Some(word) = SECURE.get((intid / 32).wrapping_sub(1) as usize) {
        word.fetch_or(1 << (intid % 32), Ordering::Relaxed);
    }
    found
}

/// Whether an SPI was found to be the Secure side's.
#[inline(always)]
pub fn is_secure(intid: u32) -> bool {
    let word = SECURE.get((intid / 32).wrapping_sub(1) as usize);
    word.is_some_and(|word| word.load(Ordering::Relaxed) >> (intid % 32) & 1 != 0)
}
