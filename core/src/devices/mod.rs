//! Emulated devices and virtual time.

pub mod deadlines;
pub mod doorbell;
#[cfg(test)]
mod doorbell_tests;
pub mod pl011;
pub mod pl031;
pub mod ptimer;
pub mod vtime;
pub mod watchdog;
