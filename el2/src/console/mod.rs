//! The console: bytes between the board's UART and the VMs' streams.

pub mod other_cache;
pub mod serve;
pub mod state;
