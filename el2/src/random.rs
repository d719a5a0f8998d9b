//! Random bytes for guests: seeds in their device trees, and generators behind the calls that ask
//! for them.

use core::sync::atomic::{AtomicU64, Ordering};

use bulkhead_abi::plan::VM_DETERMINISTIC;
use bulkhead_core::cpu::trng::Generator;

pub use bulkhead_random::block;

use crate::plan::plan;

/// The board's random bytes, from which those of the VMs are derived. Zeros: the board offers none.
static ENTROPY: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
/// Stores the random bytes of the boot device tree, during start-up.
pub fn set_entropy(rng_seed: &[u8]) {
    for (slot, eight) in ENTROPY.iter().zip(rng_seed.as_chunks().0) {
        slot.store(u64::from_le_bytes(*eight), Ordering::Relaxed);
    }
}

/// Returns the key from which the random numbers of a VM are derived; `None` if the board offers
/// none.
pub fn key(vm: usize) -> Option<[u8; 32]> {
    let fixed = plan()
        .vms
        .get(vm)
        .is_some_and(|vm| vm.flags & VM_DETERMINISTIC != 0);
    let mut key = [0u8; 32];
    if !fixed {
        for (slot, word) in key.as_chunks_mut().0.iter_mut().zip(&ENTROPY) {
            *slot = word.load(Ordering::Relaxed).to_le_bytes();
        }
    }
    (fixed || key != [0; 32]).then_some(key)
}

/// Returns 64 bytes derived from a key, for a vCPU's generator.
pub fn next_block(key: &[u8; 32]) -> [u8; 64] {
    block(key, b"bulkhead\0\0\0\0")
}

/// Returns the generator of a vCPU, if the board offers random bytes.
pub fn generator(vm: usize, number: usize) -> Option<Generator> {
    let mut purpose = *b"bulkhead\0\0\0\0";
    purpose[8] = vm as u8;
    // Seeds use 0 and 1 here.
    purpose[9] = 2;
    purpose[10] = number as u8;
    let bytes = block(&key(vm)?, &purpose);
    bytes.first_chunk().copied().map(Generator::new)
}
