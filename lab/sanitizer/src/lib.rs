//! The architecture sanitizer: a QEMU plugin that watches EL2 and finds what an emulator does not show,
//! missing barriers and missing maintenance of caches and TLBs. `docs/sanitizer.md` has its rules.
//!
//! As a library it gives the host tool the types of its configuration ([`Config`]) and its result
//! ([`Record`]); as a shared object it is loaded by `qemu-system-aarch64 -plugin FILE,config=CONFIG.json`.

mod access;
mod config;
mod cpu;
mod decode;
mod enter;
mod finding;
mod memory;
mod model;
mod order;
mod plugin;
mod tables;

pub use bulkhead_plugin::Symbol;
pub use config::{Code, Config};
pub use finding::{Finding, Record, Rule, read};
