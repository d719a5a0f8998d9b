//! Random numbers for guests: the Arm True Random Number Generator Firmware Interface (DEN0098,
//! 1.0), answered from EL2's own generator. Each vCPU has a separate stream; what it has read
//! cannot be derived from the state that EL2 has later.

use crate::cpu::psci::answer;

/// TRNG_VERSION.
const VERSION: u32 = 0x8400_0050;
/// TRNG_FEATURES.
const FEATURES: u32 = 0x8400_0051;
/// TRNG_GET_UUID.
const GET_UUID: u32 = 0x8400_0052;
/// TRNG_RND, 32-bit form.
const RND32: u32 = 0x8400_0053;
/// TRNG_RND, 64-bit form.
const RND64: u32 = 0xc400_0053;

/// Version 1.0.
const VERSION_1_0: u64 = 0x1_0000;
/// The generator's UUID, c58d3a52-9c1f-4f0e-8a67-1d2b90e4f7a3, in the order of w0 to w3 (the first
/// byte in the lowest bits).
const UUID: [u64; 4] = [0x523a_8dc5, 0x0e4f_1f9c, 0x2b1d_678a, 0xa3f7_e490];
/// Most bits that a call returns: three registers of 32 or 64 bits.
const MOST_32: u64 = 96;
const MOST_64: u64 = 192;

/// x0 to x3 of the guest after a call.
pub type Registers = [u64; 4];

/// The generator of one vCPU: a key that is replaced at each use.
#[derive(Clone, Debug)]
pub struct Generator {
    key: [u8; 32],
}

impl Generator {
    /// A generator that starts from 32 random bytes that no other generator has.
    pub const fn new(key: [u8; 32]) -> Self {
        Self { key }
    }

    /// Returns 192 random bits. `block` expands a key of 32 bytes to 64 bytes, as a stream cipher
    /// does; the first half of them is the next key, so that the old key is forgotten.
    fn next(&mut self, block: impl FnOnce(&[u8; 32]) -> [u8; 64]) -> [u64; 3] {
        let bytes = block(&self.key);
        let (key, rest) = bytes.split_at(32);
        for (to, from) in self.key.iter_mut().zip(key) {
            *to = *from;
        }
        let mut words = [0; 3];
        for (word, eight) in words.iter_mut().zip(rest.as_chunks().0) {
            *word = u64::from_le_bytes(*eight);
        }
        words
    }
}

/// Decides a call; `function` is w0, `x1` its argument. `None`: not a call of this interface, or
/// the VM has no generator, because the board gave EL2 no entropy. `block` expands a key as in
/// `Generator::next`; EL2 passes ChaCha20.
pub fn call(
    function: u32,
    x1: u64,
    generator: Option<&mut Generator>,
    block: impl FnOnce(&[u8; 32]) -> [u8; 64],
) -> Option<Registers> {
    let generator = generator?;
    Some(match function {
        VERSION => [VERSION_1_0, 0, 0, 0],
        FEATURES => match x1 as u32 {
            VERSION | FEATURES | GET_UUID | RND32 | RND64 => [0; 4],
            _ => [answer::NOT_SUPPORTED, 0, 0, 0],
        },
        GET_UUID => UUID,
        RND32 => random(x1 & 0xffff_ffff, MOST_32, generator, block),
        RND64 => random(x1, MOST_64, generator, block),
        _ => return None,
    })
}

/// `bits` random bits: the lowest in x3, bits that were not asked for are 0.
fn random(
    bits: u64,
    most: u64,
    generator: &mut Generator,
    block: impl FnOnce(&[u8; 32]) -> [u8; 64],
) -> Registers {
    if bits == 0 || bits > most {
        return [answer::INVALID_PARAMETERS, 0, 0, 0];
    }
    let width = most / 3;
    let words = generator.next(block);
    let mut registers = [0; 4];
    let mut left = bits;
    for (register, word) in registers.iter_mut().rev().zip(words) {
        let kept = left.min(width);
        // `kept` is 64 at most; a shift by 64 leaves 0.
        let mask = u64::MAX.checked_shr(64u32.wrapping_sub(kept as u32));
        *register = word & mask.unwrap_or(0);
        left = left.saturating_sub(kept);
    }
    registers
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Not random, but all bits depend on the key.
    fn block(key: &[u8; 32]) -> [u8; 64] {
        let mut state = key.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
        let mut bytes = [0; 64];
        for byte in &mut bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = (state >> 24) as u8;
        }
        bytes
    }

    fn ones(_: &[u8; 32]) -> [u8; 64] {
        [0xff; 64]
    }

    #[test]
    fn calls_are_answered() {
        let mut generator = Generator::new([1; 32]);
        let mut ask = |function, x1| call(function, x1, Some(&mut generator), block);
        assert_eq!(ask(VERSION, 0), Some([0x1_0000, 0, 0, 0]));
        for function in [VERSION, FEATURES, GET_UUID, RND32, RND64] {
            assert_eq!(ask(FEATURES, u64::from(function)).unwrap()[0], 0);
        }
        let [x0, ..] = ask(FEATURES, 0x8400_0054).unwrap();
        assert_eq!(x0, answer::NOT_SUPPORTED);
        let uuid = ask(GET_UUID, 0).unwrap();
        assert!(uuid[0] != 0xffff_ffff && uuid.iter().all(|word| *word <= 0xffff_ffff));
        let first = uuid.map(|word| (word as u32).to_le_bytes()).concat();
        assert_eq!(first[..4], [0xc5, 0x8d, 0x3a, 0x52]);
        assert_eq!(first[12..], [0x90, 0xe4, 0xf7, 0xa3]);
        assert_eq!(ask(0x8400_0054, 0), None);
        assert_eq!(ask(0xc400_0050, 0), None);
    }

    #[test]
    fn a_vm_without_a_generator_has_no_such_calls() {
        for function in [VERSION, FEATURES, GET_UUID, RND32, RND64] {
            assert_eq!(call(function, 1, None, block), None);
        }
    }

    #[test]
    fn exactly_the_bits_that_were_asked_for_come() {
        let mut generator = Generator::new([1; 32]);
        for (function, most, width) in [(RND32, 96u32, 32u32), (RND64, 192, 64)] {
            for bits in 1..=most {
                let registers = call(function, u64::from(bits), Some(&mut generator), ones);
                let [x0, x1, x2, x3] = registers.unwrap();
                assert_eq!(x0, 0);
                let count = [x3, x2, x1].map(u64::count_ones);
                let expected = [0, 1, 2].map(|n| bits.saturating_sub(n * width).min(width));
                assert_eq!(count, expected, "{bits} of {most}");
                // Contiguous ones, from the lowest bit.
                assert!([x3, x2, x1].iter().all(|x| x & x.wrapping_add(1) == 0));
            }
            for bits in [0, u64::from(most) + 1, 1 << 31] {
                let registers = call(function, bits, Some(&mut generator), ones).unwrap();
                assert_eq!(registers, [answer::INVALID_PARAMETERS, 0, 0, 0]);
            }
        }
        let upper = call(RND32, 1 << 32 | 8, Some(&mut generator), ones).unwrap();
        assert_eq!(upper, [0, 0, 0, 0xff], "the 32-bit form takes w1");
        let upper = call(RND64, 1 << 32 | 8, Some(&mut generator), ones).unwrap();
        assert_eq!(upper[0], answer::INVALID_PARAMETERS);
    }

    #[test]
    fn nothing_comes_twice() {
        let mut generator = Generator::new([1; 32]);
        let mut other = Generator::new([2; 32]);
        let mut seen = Vec::new();
        for _ in 0..50 {
            for generator in [&mut generator, &mut other] {
                seen.extend_from_slice(&call(RND64, 192, Some(generator), block).unwrap()[1..]);
            }
        }
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!((count, seen.len()), (300, 300));
    }

    #[test]
    fn the_key_is_not_what_was_given_out() {
        let mut generator = Generator::new([1; 32]);
        let before = generator.key;
        let words = generator.next(block);
        assert_ne!(generator.key, before);
        let given: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_ne!(generator.key[..24], given[..]);
    }
}
