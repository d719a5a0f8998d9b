//! What the pacer is told: which console it holds the machine for.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Configuration, as JSON in the file that the plugin's `config=` names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The console on which somebody types by what is said there.
    pub console: Option<Console>,
}

/// A console, and when the machine is held for who types there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Console {
    /// Physical addresses of the UART's data register: where bytes are written, and where they are read.
    pub data: [u64; 2],
    /// Where the code runs that drives the UART: first address and the first behind it.
    pub code: Vec<[u64; 2]>,
    /// The machine is held when a line has one of these for the first time.
    pub marks: Vec<String>,
    /// Socket at which who types listens. He gets a byte when the machine is held, and lets it go by one.
    pub socket: PathBuf,
}
