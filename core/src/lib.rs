//! Pure logic: everything in Bulkhead that decides. No `unsafe`, no allocation, no registers; time and
//! memory come as arguments, effects go back as values. EL2 and the host tool call the same code.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod boot_tree;
pub mod console;
pub mod cpu_time;
pub mod deadlines;
pub mod doorbell;
#[cfg(test)]
mod doorbell_tests;
pub mod exit;
pub mod gppt;
pub mod inject;
pub mod keys;
pub mod monitor;
pub mod pl011;
pub mod pl031;
pub mod plan;
pub mod power;
pub mod psci;
pub mod ptimer;
pub mod pvtime;
pub mod report;
pub mod ring;
pub mod sched;
pub mod smccc;
pub mod stage2;
pub mod stats;
pub mod sysreg;
pub mod text;
pub mod trng;
pub mod vgic;
pub mod vtime;
pub mod watchdog;
