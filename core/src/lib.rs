//! Pure logic: everything in Bulkhead that decides. No `unsafe`, no allocation, no registers; time and
//! memory come as arguments, effects go back as values. EL2 and the host tool call the same code.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod plan;
pub mod stage2;
