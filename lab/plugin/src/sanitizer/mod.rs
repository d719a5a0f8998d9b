//! Data that the architecture sanitizer and the host tool exchange. It is here and not in the sanitizer's
//! own crate, because a program can hold one plugin only.

mod config;
mod finding;

pub use config::{Active, Code, Config};
pub use finding::{Finding, Record, Rule, read};
