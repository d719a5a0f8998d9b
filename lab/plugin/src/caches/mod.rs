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
    /// Nothing is modelled before the first mark but what memory holds: what comes before may be long.
    pub from_mark: bool,
    /// VMIDs with which the VMs of clusters behind the first one begin, ascending: each cluster has an L2 of its own. A CPU is in the cluster of the VM that it
    /// runs, since QEMU does not tell its number where CPUs take turns; before that in the first one.
    pub clusters: Vec<u16>,
}

impl Config {
    /// The cluster of a VM.
    pub fn cluster_of(&self, vmid: u16) -> usize {
        self.clusters.partition_point(|first| *first <= vmid)
    }
}
