//! The host tool as a library: one module for each step from a description to figures.
#![forbid(unsafe_code)]

pub mod cmd;
pub mod failure;
pub mod fetch;
