//! Configuration of the pacer: the console for which it holds the machine.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Configuration, as JSON in the file that the plugin's `config=` names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The console on which somebody types by what is said there.
    pub console: Option<Console>,
    /// QEMU's threads pause at random places, as on a host with much else to do: a test of the pacer itself.
    pub is_shaken: bool,
}

/// A console, and the lines at which the machine is held for input there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Console {
    /// Physical addresses of the UART's data register: where bytes are written, and where they are read.
    pub data: [u64; 2],
    /// Ranges of the code that drives the UART: first address and the first behind it.
    pub code: Vec<[u64; 2]>,
    /// The machine is held when a line has one of these for the first time.
    pub marks: Vec<String>,
    /// Path of the socket at which the typing side listens. It gets a byte when the machine is held, and
    /// lets it go by one.
    pub socket: PathBuf,
}
