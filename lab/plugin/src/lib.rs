//! Code that the project's QEMU plugins share: QEMU's plugin interface, the start and configuration of a plugin, and
//! the functions of EL2.
//!
//! A plugin is a [`Plugin`] that [`plugin!`] gives to QEMU. The functions of QEMU that it calls are looked up when it is
//! installed, so that its crate is an ordinary library as well.

pub mod api;
pub mod caches;
mod configuration;
mod decode;
mod install;
pub mod pacer;
pub mod sanitizer;
mod stacks;
mod symbol;

pub use configuration::configuration;
pub use decode::accesses_memory;
pub use install::{Loaded, Plugin, install, lock, refuse, write_result};
pub use stacks::{Stacks, changes_hands};
pub use symbol::{Symbol, find, sorted};
