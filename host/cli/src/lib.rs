//! The user's tool as a library: the command line, one module for each verb, and what only verbs need.
#![forbid(unsafe_code)]

pub mod cmd;
pub mod demo;
pub mod init;
mod question;
mod recorded_run;
mod start;

pub use recorded_run::page as recorded_run_page;
pub use start::start;
