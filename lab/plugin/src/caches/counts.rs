//! What the model has counted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::geometry::Geometry;

/// Who has a line, or makes an access: 0 is EL2, others are VMs by their VMID.
pub type Owner = u16;

/// EL2 as an [`Owner`]. No VM has this VMID.
pub const EL2: Owner = 0;

/// The figure whose mark a guest sets where an interrupt has reached it.
pub const LATENCY: u64 = 2;

/// Counts of one owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Instructions.
    pub instructions: u64,
    /// Loads and stores, by cache line.
    pub data: u64,
    /// Those of them that were not in the CPU's L1.
    pub data_misses: u64,
    /// Lines of code that were not in the CPU's L1.
    pub code_misses: u64,
    /// Translations that were not in the CPU's TLB.
    pub tlb_misses: u64,
    /// Descriptors that were read for them.
    pub descriptors: u64,
    /// Accesses to the L2: misses of an L1, and descriptors.
    pub l2: u64,
    /// Those of them that were not in the L2 either, nor in another CPU's L1.
    pub l2_misses: u64,
    /// Lines of this owner that left the L2 for a line of another.
    pub evicted: u64,
    /// Lines of this owner that were written to memory.
    pub written_back: u64,
}

impl Counts {
    fn parts(&mut self) -> [&mut u64; 10] {
        [
            &mut self.instructions,
            &mut self.data,
            &mut self.data_misses,
            &mut self.code_misses,
            &mut self.tlb_misses,
            &mut self.descriptors,
            &mut self.l2,
            &mut self.l2_misses,
            &mut self.evicted,
            &mut self.written_back,
        ]
    }

    /// Adds `other`.
    pub fn add(&mut self, mut other: Self) {
        for (part, more) in self.parts().into_iter().zip(other.parts()) {
            *part += *more;
        }
    }

    /// What has come since `before`.
    #[must_use]
    pub fn since(mut self, mut before: Self) -> Self {
        for (part, before) in self.parts().into_iter().zip(before.parts()) {
            *part -= *before;
        }
        self
    }

    /// Cycles by the simple model: one for each instruction, and what each access takes longer. In order and without prefetching, no two at once.
    pub const fn cycles(&self, geometry: &Geometry) -> u64 {
        self.instructions + self.l2 * geometry.l2_cycles + self.l2_misses * geometry.memory_cycles
    }
}

/// The result, as JSON in the file that the configuration names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counted {
    /// The caches.
    pub geometry: Geometry,
    /// Whole run, by [`Owner`].
    pub all: BTreeMap<Owner, Counts>,
    /// Between a guest's marks, by the number of the figure.
    pub figures: BTreeMap<u64, BTreeMap<Owner, Counts>>,
    /// Turns of CPUs while the figure was open, by its number: so often another CPU went on.
    pub turns: BTreeMap<u64, u64>,
    /// Cycles from the instruction at which an interrupt took a CPU from its guest to the mark of [`LATENCY`], in the order of these marks.
    pub latencies: Vec<u64>,
    /// CPUs that were seen.
    pub cpus: usize,
    /// Accesses of data whose physical address was compared with QEMU's.
    pub checked: u64,
    /// Those of them where the model's TLBs or walks gave another one: the model is wrong if there is any.
    pub wrong: u64,
    /// Translations of which a descriptor was never seen to be written, or that have another granule than 4 KiB: their walks are in no count.
    pub unknown_walks: u64,
}
