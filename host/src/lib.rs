//! The host tool as a library: one module for each step from a description to figures.
#![deny(unsafe_code)]

pub mod cmd;
pub mod failure;
pub mod fetch;
pub mod machine;
pub mod progress;
pub mod run;
mod sys;
