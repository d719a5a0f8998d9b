//! The priorities of 32 interrupts, stored as one word for each bit of a priority. So the most
//! urgent of any set of them is found in as many steps as a priority has bits.

use super::PRIORITY_BITS;
use super::priorities::Priorities;

/// The number of bits of a priority that exist.
const BITS: u32 = PRIORITY_BITS.count_ones();

/// For each bit of a priority, the most significant first: the interrupts in whose priority that
/// bit is set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planes([u32; BITS as usize]);

impl Planes {
    /// Creates planes in which each interrupt has priority 0.
    pub(super) const fn new() -> Self {
        Self([0; BITS as usize])
    }

    /// Sets the priority of the interrupts in `bits`.
    pub(super) fn set(&mut self, bits: u32, priority: u8) {
        let mut rest = u32::from(priority);
        for plane in &mut self.0 {
            *plane = if rest & 0x80 != 0 {
                *plane | bits
            } else {
                *plane & !bits
            };
            rest <<= 1;
        }
    }

    /// Copies the priorities of the interrupts in `bits`, eight interrupts at a time.
    pub(super) fn take(&mut self, bits: u32, priorities: &Priorities) {
        let mut left = bits;
        while left != 0 {
            let first = left.trailing_zeros() & 24;
            let those = left & 0xff_u32.wrapping_shl(first);
            left &= !those;
            let mut eight = priorities.eight(first);
            for plane in &mut self.0 {
                // Moves the highest bit of byte n to bit n of the highest byte. No carry occurs:
                // each bit of the sum has its own position.
                let row = (eight >> 7 & 0x0101_0101_0101_0101).wrapping_mul(0x0102_0408_1020_4080);
                let row = ((row >> 56) as u32).wrapping_shl(first);
                *plane = *plane & !those | row & those;
                eight <<= 1;
            }
        }
    }

    /// Returns the most urgent interrupts in `bits`, and their priority. If `bits` is 0: none, and
    /// the least urgent priority.
    #[inline(always)]
    pub(super) fn most_urgent(&self, bits: u32) -> (u32, u8) {
        let (mut urgent, mut priority) = (bits, 0u32);
        for plane in &self.0 {
            let clear = urgent & !plane;
            priority = priority << 1 | u32::from(clear == 0);
            urgent = if clear == 0 { urgent } else { clear };
        }
        (urgent, (priority << (8 - BITS)) as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Priorities that differ in every bit, some of them equal.
    fn priorities() -> Priorities {
        let priorities = Priorities::new();
        for n in 0..32u32 {
            priorities.set(n, (n.wrapping_mul(0x58) ^ 0xa8) as u8);
        }
        priorities
    }

    #[test]
    fn the_most_urgent_of_any_are_those_with_the_smallest_byte() {
        let priorities = priorities();
        let mut planes = Planes::new();
        planes.take(u32::MAX, &priorities);
        let mut seed = 0x9e37_79b9u32;
        for _ in 0..1000 {
            seed = seed.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
            let bits = seed & seed.rotate_left(7) | 1 << (seed % 32);
            let those = || super::super::each(0, bits);
            let of = |n: u32| priorities.get(n);
            let least = those().map(of).min().expect("a bit is set");
            let urgent = those()
                .filter(|n| of(*n) == least)
                .fold(0, |all, n| all | 1 << n);
            assert_eq!(planes.most_urgent(bits), (urgent, least), "{bits:#x}");
        }
        assert_eq!(planes.most_urgent(0).0, 0);
    }

    #[test]
    fn only_those_asked_for_change() {
        let priorities = priorities();
        for bits in [1, 1 << 31, 0x0001_8180, 0x00ff_0000, 0xf00f_a55a] {
            let mut planes = Planes::new();
            planes.set(u32::MAX, 0x58);
            planes.take(bits, &priorities);
            planes.set(bits.reverse_bits() & bits, 0xa0);
            for n in 0..32 {
                let expected = match (bits >> n & 1, bits.reverse_bits() >> n & 1) {
                    (1, 1) => 0xa0,
                    (1, _) => priorities.get(n),
                    _ => 0x58,
                };
                assert_eq!(planes.most_urgent(1 << n), (1 << n, expected), "{n}");
            }
        }
    }
}
