//! What the project's QEMU plugins share: QEMU's plugin interface, how a plugin gets its configuration, and
//! the functions of EL2.
//!
//! A plugin defines `qemu_plugin_version` and `qemu_plugin_install` itself; the functions of QEMU that
//! it calls are looked up when it is installed, so that its crate is an ordinary library as well.

pub mod api;
mod configuration;
pub mod sanitizer;
mod symbol;

pub use configuration::configuration;
pub use symbol::{Symbol, find, sorted};
