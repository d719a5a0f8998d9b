//! Which SPIs EL2 can have: not those that the GIC does not have, nor those of the Secure side. Of an SPI that no device has nobody tells whose it is, so
//! that all are tried when the board starts.

use core::sync::atomic::{AtomicU32, Ordering};

use super::registers::bank;
use crate::hw::mmio::Registers;

/// Words of 32 INTIDs: as many as a distributor can have.
const WORDS: usize = 32;

/// A bit for each INTID that can be enabled. Written while the board starts.
static USABLE: [AtomicU32; WORDS] = [const { AtomicU32::new(0) }; WORDS];

/// Tries the SPIs of a word of 32, while the distributor forwards none: the bits of others read as zero and ignore writes (IHI 0069H,
/// GICD_ISENABLER\<n\>; IHI 0048B.b, 4.3.5). None is left enabled, whatever is done to them before or afterwards.
#[inline(always)]
pub(super) fn look(gicd: Registers, word: u64) {
    let bits = word.wrapping_mul(4);
    gicd.write(bank::ENABLE.wrapping_add(bits), u32::MAX);
    let usable = gicd.read(bank::ENABLE.wrapping_add(bits));
    gicd.write(bank::DISABLE.wrapping_add(bits), u32::MAX);
    USABLE[word as usize % WORDS].store(usable, Ordering::Relaxed);
}

/// Whether EL2 can have an SPI.
#[inline(always)]
pub fn is_usable(intid: u32) -> bool {
    let word = &USABLE[intid as usize / 32 % WORDS];
    word.load(Ordering::Relaxed) >> (intid % 32) & 1 != 0
}
