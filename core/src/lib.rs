//! Pure logic: everything in Bulkhead that decides. No `unsafe`, no allocation, no registers; time
//! and memory come as arguments, effects go back as values. EL2 and the host tool call the same
//! code.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod bandwidth;
pub mod boot_tree;
pub mod colours;
pub mod console;
pub mod control;
pub mod cpu;
pub mod devices;
pub mod gppt;
pub mod monitor;
pub mod plan;
pub mod sched;
pub mod stage2;
pub mod sync;
pub mod vgic;
pub mod virtio;
