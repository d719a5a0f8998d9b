//! The host tool as a library: one module for each step from a description to figures.
#![deny(unsafe_code)]

pub mod bench;
pub mod board;
pub mod book;
pub mod cmd;
pub mod demo;
pub mod describe;
pub mod explain;
pub mod failure;
pub mod fetch;
mod further;
pub mod fuzzing;
pub mod guest_tree;
pub mod image;
pub mod init;
pub mod leftovers;
pub mod machine;
pub mod planner;
pub mod progress;
pub mod run;
pub mod show;
pub mod survey;
mod sys;
pub mod system;
pub mod testing;
