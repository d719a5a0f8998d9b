//! The keys behind a VM's random numbers.
//!
//! Each VM has a key from which the seeds of its device tree are derived, and each of its vCPUs one
//! with which its [`Generator`] begins. All come from the board's random bytes, once. The key of
//! the VM is a ratchet: at each life a one-way function of itself and the number of the life
//! replaces it, so that neither what a life was given nor the key that EL2 has later tells
//! anything about the seeds of another life.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::cpu::trng::Generator;

/// Purpose of a block; no block has two purposes.
#[derive(Clone, Copy)]
enum Purpose {
    /// First keys, two in a block.
    Start,
    /// The next key of the VM, and a seed for `kaslr-seed`.
    Life,
    /// A seed for `rng-seed`.
    Seed,
}

/// The nonce of a block: its purpose, two numbers (VM and block, or 0), and the life, or 0.
fn nonce(purpose: Purpose, vm: u8, number: u8, life: u32) -> [u8; 12] {
    let [a, b, c, d] = life.to_le_bytes();
    [
        purpose as u8,
        vm,
        number,
        0,
        a,
        b,
        c,
        d,
        b'b',
        b'u',
        b'l',
        b'k',
    ]
}

/// The seeds of one life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds {
    /// For `/chosen/rng-seed`.
    pub rng: [u8; 64],
    /// For `/chosen/kaslr-seed`.
    pub kaslr: [u8; 8],
}

/// A key of 32 bytes, of a VM or of a generator to be made; zeros: there is none, because the board
/// gave EL2 no random bytes. One pCPU at a time uses it.
#[derive(Debug, Default)]
pub struct Key([AtomicU64; 4]);

impl Key {
    /// No key.
    pub const fn none() -> Self {
        Self([const { AtomicU64::new(0) }; 4])
    }

    /// Derives the first keys of VM `vm` from the board's random bytes: its own and those of its
    /// generators. `block` gives 64 bytes that depend on a key and a nonce, none of which tells
    /// anything about the key or about the others, as a stream cipher does; EL2 passes ChaCha12.
    pub fn start<'a>(
        keys: impl Iterator<Item = &'a Self>,
        board: &[u8; 32],
        vm: u8,
        block: impl Fn(&[u8; 32], &[u8; 12]) -> [u8; 64],
    ) {
        let mut bytes = [0; 64];
        for (number, key) in keys.enumerate() {
            let [first, second] = if number % 2 == 0 {
                bytes = block(board, &nonce(Purpose::Start, vm, number as u8, 0));
                [0, 32]
            } else {
                [32, 64]
            };
            key.put(bytes.get(first..second).unwrap_or(&[]));
        }
    }

    fn put(&self, bytes: &[u8]) {
        for (word, eight) in self.0.iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_le_bytes(*eight), Ordering::Relaxed);
        }
    }

    /// Removes the key.
    fn take(&self) -> Option<[u8; 32]> {
        let mut key = [0; 32];
        for (eight, word) in key.as_chunks_mut().0.iter_mut().zip(&self.0) {
            *eight = word.load(Ordering::Relaxed).to_le_bytes();
            word.store(0, Ordering::Relaxed);
        }
        (key != [0; 32]).then_some(key)
    }

    /// Returns the generator that begins with this key, once: the key is not kept.
    pub fn generator(&self) -> Option<Generator> {
        self.take().map(Generator::new)
    }

    /// Returns the seeds of the next life, whose number is `life`, and replaces the VM's key.
    pub fn next_life(
        &self,
        life: u32,
        block: impl Fn(&[u8; 32], &[u8; 12]) -> [u8; 64],
    ) -> Option<Seeds> {
        let key = self.take()?;
        let rng = block(&key, &nonce(Purpose::Seed, 0, 0, life));
        let bytes = block(&key, &nonce(Purpose::Life, 0, 0, life));
        let (next, rest) = bytes.split_at(32);
        self.put(next);
        let kaslr = *rest.first_chunk()?;
        Some(Seeds { rng, kaslr })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::trng;
    use bulkhead_abi::plan::MAX_VCPUS_PER_VM;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    /// Not random, but all bits depend on key and nonce.
    fn block(key: &[u8; 32], nonce: &[u8; 12]) -> [u8; 64] {
        let all = key.iter().chain(nonce);
        let mut state = all.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
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

    /// The key of a VM, and those of its vCPUs' generators.
    fn started(vm: u8, vcpus: usize) -> (Key, Vec<Key>) {
        let own = Key::none();
        let rest: Vec<Key> = (0..vcpus).map(|_| Key::none()).collect();
        Key::start([&own].into_iter().chain(&rest), &[7; 32], vm, block);
        (own, rest)
    }

    /// Everything of a key that is in memory.
    fn memory(key: &Key) -> [u64; 4] {
        [0, 1, 2, 3].map(|word| key.0[word].load(Ordering::Relaxed))
    }

    fn first_output(generator: &mut trng::Generator) -> [u64; 4] {
        let next = |key: &[u8; 32]| block(key, &[0; 12]);
        trng::call(0xc400_0053, 192, Some(generator), next).unwrap()
    }

    #[test]
    fn no_two_lives_vms_and_vcpus_have_anything_in_common() {
        let mut seen = BTreeSet::new();
        let mut count = 0;
        for vm in [0, 1, 63] {
            let (key, vcpus) = started(vm, MAX_VCPUS_PER_VM);
            for vcpu in vcpus {
                let mut generator = vcpu.generator().unwrap();
                seen.insert(first_output(&mut generator)[1..].to_vec());
                count += 1;
            }
            for life in 1..=20 {
                let seeds = key.next_life(life, block).unwrap();
                let rng = seeds.rng.as_chunks().0.iter();
                let rng: Vec<_> = rng.map(|eight| u64::from_le_bytes(*eight)).collect();
                seen.insert(rng);
                seen.insert([u64::from_le_bytes(seeds.kaslr)].into());
                seen.insert(memory(&key).into());
                count += 3;
            }
        }
        assert_eq!(seen.len(), count);
    }

    #[test]
    fn the_same_board_gives_the_same_lives_again() {
        let [(a, _), (b, _)] = [started(3, 1), started(3, 1)];
        for life in 1..5 {
            assert_eq!(a.next_life(life, block), b.next_life(life, block));
        }
    }

    #[test]
    fn the_number_of_the_life_counts_too() {
        let [(a, _), (b, _)] = [started(3, 1), started(3, 1)];
        assert_ne!(a.next_life(1, block), b.next_life(2, block));
        assert_ne!(memory(&a), memory(&b));
    }

    /// Nothing that was there before a life is there in it, nor anything that its guest was given;
    /// and what is there does not give its seeds.
    #[test]
    fn the_key_before_is_gone_and_nobody_was_given_the_next() {
        let (key, _) = started(0, 2);
        for life in 1..=5 {
            let before = memory(&key);
            let seeds = key.next_life(life, block).unwrap();
            let after = memory(&key);
            assert!(before.iter().all(|word| !after.contains(word)), "{life}");
            for eight in seeds.rng.as_chunks().0.iter().chain([&seeds.kaslr]) {
                assert!(!after.contains(&u64::from_le_bytes(*eight)), "{life}");
            }
            let found = Key(after.map(AtomicU64::new));
            assert_ne!(found.next_life(life, block), Some(seeds));
        }
    }

    #[test]
    fn a_generator_is_made_once_and_its_key_forgotten() {
        for vcpus in 1..=MAX_VCPUS_PER_VM {
            let (key, rest) = started(0, vcpus);
            assert!(rest.iter().all(|vcpu| vcpu.generator().is_some()));
            assert!(rest.iter().all(|vcpu| vcpu.generator().is_none()));
            assert!(rest.iter().all(|vcpu| memory(vcpu) == [0; 4]));
            assert!(key.next_life(1, block).is_some());
        }
    }

    #[test]
    fn without_random_bytes_there_is_nothing() {
        assert_eq!(Key::none().next_life(1, block), None);
        assert!(Key::none().generator().is_none());
    }
}
