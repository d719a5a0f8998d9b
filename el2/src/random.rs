//! Random bytes for guests: seeds in their device trees, and generators behind the calls that ask
//! for them. The keys lie in the pages of the vCPUs ([`keys`]).

use bulkhead_abi::plan::VM_DETERMINISTIC;
use bulkhead_core::cpu::keys::{Key, Seeds};
use bulkhead_core::cpu::trng::Generator;
use bulkhead_random::block;

use crate::hw::mmu::PagePool;
use crate::hw::state::keys;
use crate::plan::plan;
use crate::vm;

/// Derives the first keys of all VMs from the board's random bytes, which are not used again.
/// Without random bytes only deterministic VMs get keys.
#[inline(never)]
pub fn start(page_pool: &PagePool, rng_seed: &[u8]) {
    let mut board = [0; 32];
    for (to, from) in board.iter_mut().zip(rng_seed) {
        *to = *from;
    }
    for (index, row) in plan().vms.iter().enumerate() {
        let fixed = row.flags & VM_DETERMINISTIC != 0;
        let from = if fixed { [0; 32] } else { board };
        if fixed || from != [0; 32] {
            let ids = vm::ids_of(index);
            let [own, _] = page_pool.keys(ids.start);
            let vcpus = ids.map(|id| &page_pool.keys(id)[1]);
            Key::start([own].into_iter().chain(vcpus), &from, index as u8, block);
        }
    }
}

/// Returns the seeds of the life that a VM begins, for its first vCPU (row of the plan); `None` if the board offers no random
/// bytes.
pub fn seeds(vm: usize, first: usize) -> Option<Seeds> {
    keys(first)[0].next_life(vm::vm(vm).life.number(), block)
}

/// Returns 64 bytes derived from a key, for a vCPU's generator.
pub fn next_block(key: &[u8; 32]) -> [u8; 64] {
    block(key, b"bulkhead\0\0\0\0")
}

/// Returns the generator of a vCPU (row of the plan), once, if the board offers random bytes.
pub fn generator(id: usize) -> Option<Generator> {
    keys(id)[1].generator()
}
