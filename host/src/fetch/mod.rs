//! Payloads from Debian: packages of another architecture, unpacked and made into what a guest boots.

pub mod cache;
