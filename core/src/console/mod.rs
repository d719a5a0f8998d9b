//! The console: the multiplexer of all VMs' streams, its keys, and the messages of EL2.

pub mod backlog;
pub mod cpu_time;
pub mod keys;
pub mod mux;
#[cfg(test)]
mod mux_tests;
pub mod report;
pub mod ring;
#[cfg(test)]
mod said_tests;
pub mod stats;
pub mod text;
