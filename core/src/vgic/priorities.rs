//! The priorities of 32 interrupts, as the registers have them: a byte for each, four in a word.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::PRIORITY_BITS;

/// The bits that exist in a word of four priorities.
const WORD_BITS: u32 = u32::from_ne_bytes([PRIORITY_BITS; 4]);
/// The lowest bit of a priority that exists.
const LOWEST: u32 = PRIORITY_BITS.trailing_zeros();

/// The priorities of 32 interrupts. A word is written at once, so that two vCPUs that write the same
/// priority both learn whether it has changed.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Priorities([AtomicU32; 8]);

/// Returns a bit for each byte that is not zero, of a word that has only bits of [`WORD_BITS`].
#[inline(always)]
const fn bytes_in_use(word: u32) -> u32 {
    // Bit 5 of each byte: whether one of the five below it was set. No carry leaves a byte.
    let five = word >> LOWEST;
    let some = five.wrapping_add(0x1f1f_1f1f) >> 5 & 0x0101_0101;
    // Moves bit 8n to bit 24 + n; each bit of the product has its own position.
    some.wrapping_mul(0x0102_0408) >> 24 & 0xf
}

impl Priorities {
    pub(super) const fn new() -> Self {
        Self([const { AtomicU32::new(0) }; 8])
    }

    /// Resets all priorities to 0.
    pub(super) fn reset(&self) {
        self.0.iter().for_each(|word| word.store(0, Relaxed));
    }

    /// Returns the word that has interrupt `n` of the 32.
    #[inline(always)]
    fn at(&self, n: u32) -> &AtomicU32 {
        &self.0[(n / 4 % 8) as usize]
    }

    /// Returns the priority of interrupt `n` of the 32.
    #[inline(always)]
    pub(super) fn get(&self, n: u32) -> u8 {
        (self.at(n).load(Relaxed) >> (n % 4).wrapping_mul(8)) as u8
    }

    /// Returns the priorities of eight interrupts from `first`, a multiple of 8, on.
    #[inline(always)]
    pub(super) fn eight(&self, first: u32) -> u64 {
        let half = |n| u64::from(self.word(first | n));
        half(0) | half(4) << 32
    }

    /// Returns the priorities of the four interrupts that share a word with `n`.
    #[inline(always)]
    pub(super) fn word(&self, n: u32) -> u32 {
        self.at(n).load(Relaxed)
    }

    /// Writes the four priorities of the word that begins with interrupt `first`, a multiple of 4;
    /// returns a bit for each of the 32 interrupts whose priority has changed.
    #[inline(always)]
    pub(super) fn set_word(&self, first: u32, value: u32) -> u32 {
        let value = value & WORD_BITS;
        let changed = self.at(first).swap(value, Relaxed) ^ value;
        bytes_in_use(changed).wrapping_shl(first)
    }

    /// Writes the priority of interrupt `n`; returns its bit if it has changed.
    pub(super) fn set(&self, n: u32, value: u8) -> u32 {
        let (word, shift) = (self.at(n), (n % 4).wrapping_mul(8));
        let value = u32::from(value & PRIORITY_BITS).wrapping_shl(shift);
        let mut before = word.load(Relaxed);
        loop {
            let now = before & !0xff_u32.wrapping_shl(shift) | value;
            match word.compare_exchange(before, now, Relaxed, Relaxed) {
                Ok(_) if before == now => return 0,
                Ok(_) => return 1u32.wrapping_shl(n),
                Err(other) => before = other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_four_priorities_and_tells_which_have_changed() {
        let priorities = Priorities::new();
        for first in (0..32).step_by(4) {
            for which in 0..16u32 {
                for byte in [0x08, 0x80, 0xf8, 0x78] {
                    priorities.set_word(first, 0);
                    let value = (0..4)
                        .filter(|n| which >> n & 1 != 0)
                        .fold(0x0707_0707, |all, n| all | byte << (8 * n));
                    assert_eq!(priorities.set_word(first, value), which << first);
                    assert_eq!(priorities.set_word(first, value), 0, "written again");
                    for n in 0..4 {
                        let there = if which >> n & 1 != 0 { byte } else { 0 };
                        assert_eq!(u32::from(priorities.get(first + n)), there);
                    }
                }
            }
            assert_eq!(priorities.word(first), 0x7878_7878);
        }
    }

    #[test]
    fn a_byte_leaves_the_others_of_its_word_alone() {
        let priorities = Priorities::new();
        for n in 0..32 {
            assert_eq!(
                priorities.set(n, (n as u8) << 3 | 7),
                if n == 0 { 0 } else { 1 << n }
            );
        }
        for n in 0..32 {
            assert_eq!(priorities.get(n), (n as u8) << 3);
            assert_eq!(priorities.set(n, (n as u8) << 3), 0);
        }
        for first in (0..32).step_by(8) {
            let eight = priorities.eight(first).to_le_bytes();
            assert_eq!(
                eight,
                core::array::from_fn(|n| (first as u8 + n as u8) << 3)
            );
        }
        priorities.reset();
        assert!((0..32).all(|n| priorities.get(n) == 0));
    }
}
