//! QEMU plugin that counts what EL2 costs: instructions, system registers, barriers and memory accesses, by
//! exit, by marked operation, by period of a timer and for the way from reset to the first guest.
//!
//! As a library it gives the host tool the types of its configuration ([`Config`]) and its result
//! ([`Profile`]); as a shared object it is loaded by `qemu-system-aarch64 -plugin FILE,config=CONFIG.json`.
//!
//! Nothing here changes what the machine does: instructions are counted by callbacks that read registers only,
//! memory accesses by decoding, so two runs under `-icount` give the same numbers with and without it.

mod config;
mod cpu;
mod decode;
mod pending;
mod plugin;
mod profile;
mod result;

pub use bulkhead_plugin::Symbol;
pub use config::{Config, CpuKey, Marks, Period};
pub use profile::{Boot, Cost, Exits, Figure, Longest, Periods, Profile, Row, Visit};
