//! Configuration of the model of caches, and its result.

mod counts;
mod geometry;

pub use counts::{Counted, Counts, EL2, LATENCY, Owner};
pub use geometry::{Geometry, LINE, Replacement, Shape};

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Configuration, as JSON in the file that the plugin's `config=` names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Path of the file to which [`Counted`] is written when QEMU ends.
    pub output: PathBuf,
    /// The caches.
    pub geometry: Geometry,
    /// Addresses of two functions of a guest that take the number of a figure in x0, and begin and end it: for all CPUs.
    pub marks: Option<[u64; 2]>,
}
