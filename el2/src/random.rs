//! Random bytes for guests: seeds in their device trees, and generators behind the calls that ask
//! for them.

use bulkhead_abi::plan::{MAX_VCPUS, MAX_VMS, VM_DETERMINISTIC};
use bulkhead_core::cpu::keys::{Key, Seeds};
use bulkhead_core::cpu::trng::Generator;
use bulkhead_random::block;

use crate::plan::{self, plan};
use crate::vm;

/// The keys of the VMs.
static VMS: [Key; MAX_VMS] = [const { Key::none() }; MAX_VMS];
/// The keys of the generators of the vCPUs, until these have been made.
static VCPUS: [Key; MAX_VCPUS] = [const { Key::none() }; MAX_VCPUS];

/// Derives the first keys of all VMs from the board's random bytes, which are not used again.
/// Without random bytes only deterministic VMs get keys.
pub fn start(rng_seed: &[u8]) {
    let mut board = [0; 32];
    for (to, from) in board.iter_mut().zip(rng_seed) {
        *to = *from;
    }
    for (index, (row, own)) in plan().vms.iter().zip(&VMS).enumerate() {
        let fixed = row.flags & VM_DETERMINISTIC != 0;
        let from = if fixed { [0; 32] } else { board };
        if fixed || from != [0; 32] {
            let vcpus = plan::ids_of(index).filter_map(|id| VCPUS.get(id));
            Key::start([own].into_iter().chain(vcpus), &from, index as u8, block);
        }
    }
}

/// Returns the seeds of the life that a VM begins; `None` if the board offers no random bytes.
pub fn seeds(vm: usize) -> Option<Seeds> {
    VMS.get(vm)?.next_life(vm::vm(vm).life.number(), block)
}

/// Returns 64 bytes derived from a key, for a vCPU's generator.
pub fn next_block(key: &[u8; 32]) -> [u8; 64] {
    block(key, b"bulkhead\0\0\0\0")
}

/// Returns the generator of a vCPU (row of the plan), once, if the board offers random bytes.
pub fn generator(id: usize) -> Option<Generator> {
    VCPUS.get(id)?.generator()
}
