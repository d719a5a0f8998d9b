//! Everything that touches the machine, and all of the `unsafe` at EL2. All that is public here is
//! safe to call; `docs/internals/unsafe.md` says why.
#![allow(unsafe_code)]

pub mod boot;
mod bytes;
pub mod claim;
pub mod context;
pub mod cpu;
pub mod debug;
pub mod fault;
pub mod firmware;
pub mod gic;
pub mod layout;
pub mod memory;
pub mod mmio;
pub mod mmu;
pub mod page_pool;
pub mod plan;
pub mod pmu;
#[cfg(not(feature = "gicv2"))]
pub mod sdei;
pub mod service;
pub mod state;
pub mod sysreg;
pub mod thread;
pub mod timer;
pub mod uart;
pub mod upcall;
