//! Everything that crosses a boundary between two parts of Bulkhead that are built apart: the plan
//! (host tool to EL2), calls (guests to EL2), exit classes and the console's lines (EL2 to tools), and what two sides
//! share in memory or say to each other through a port ([`control`]).
//!
//! Layouts here are fixed by `docs/adr/0002-plan-format.md`. All integers are little endian; both
//! sides of every boundary are little-endian machines, which the build checks.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(not(target_endian = "little"))]
compile_error!("the plan is little endian; build for a little-endian machine");

pub mod call;
pub mod console;
pub mod control;
pub mod device;
pub mod exit;
pub mod plan;
pub mod report;
pub mod shared_page;
pub mod syndrome;
