//! Modules of the project's core that several pCPUs work on at a time, compiled with loom's atomics. The tests run
//! them under every interleaving and every outcome that the memory model allows (`docs/internals/locking.md`).

// `core` in the modules below is loom's.
extern crate bulkhead_loom_atomics as core;

#[path = "../../../core/src/doorbell.rs"]
pub mod doorbell;
#[path = "../../../core/src/gppt/grip.rs"]
pub mod grip;
#[path = "../../../core/src/power.rs"]
pub mod power;
#[path = "../../../core/src/ring.rs"]
pub mod ring;

#[path = "../../../poll/src/word.rs"]
pub mod word;

pub mod protocol;
