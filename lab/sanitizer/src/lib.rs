//! The architecture sanitizer: a QEMU plugin that watches EL2 and finds what an emulator does not show,
//! missing barriers and missing maintenance of caches and TLBs. `docs/internals/sanitizer.md` has its rules.
//!
//! It is loaded by `qemu-system-aarch64 -plugin FILE,config=CONFIG.json`. Its configuration and its result are in
//! [`bulkhead_plugin::sanitizer`].

mod access;
mod cpu;
mod decode;
mod enter;
mod memory;
mod model;
mod order;
mod output;
mod plugin;
mod tables;
mod walks;
