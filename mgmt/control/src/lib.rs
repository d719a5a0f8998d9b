//! The manager's side of the control protocol ([`bulkhead_abi::control`]): finding the port or the daemon that has it, asking EL2,
//! hearing events.
#![forbid(unsafe_code)]

pub mod board;
pub mod connection;
pub mod console;
pub mod core_file;
pub mod crash;
pub mod dump;
pub mod failure;
pub mod manager;
pub mod order;
pub mod port;
pub mod refusal;
pub mod words;
