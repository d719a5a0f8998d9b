//! Sizes of caches and TLBs, and what an access costs.

use serde::{Deserialize, Serialize};

/// Bytes of a cache line, of all caches of the CPUs that are modelled.
pub const LINE: u64 = 64;

/// Which line of a set is given up for a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Replacement {
    /// The one that has not been used for longest.
    Lru,
    /// Any: by a generator that starts alike in each run.
    Random,
}

/// A cache, or a TLB: then `size` is its number of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Bytes, or entries.
    pub size: u64,
    /// Lines, or entries, in a set.
    pub ways: u64,
    /// Which is given up.
    pub replacement: Replacement,
}

impl Shape {
    const fn new(size: u64, ways: u64, replacement: Replacement) -> Self {
        Self {
            size,
            ways,
            replacement,
        }
    }
}

/// The caches of a cluster, one set of private ones for each CPU, and what they cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// Instructions, of each CPU.
    pub l1i: Shape,
    /// Data, of each CPU.
    pub l1d: Shape,
    /// Shared by all.
    pub l2: Shape,
    /// Main TLB of each CPU: whole translations.
    pub tlb: Shape,
    /// Tables of the last level, by virtual address: stage 1 goes on there.
    pub walk_cache: Shape,
    /// Translations of stage 2.
    pub ipa_cache: Shape,
    /// Cycles that an access takes longer when the L2 has it.
    pub l2_cycles: u64,
    /// Cycles that it takes longer, beyond that, when memory has it.
    pub memory_cycles: u64,
}

impl Geometry {
    /// Four Cortex-A53 as in a Zynq UltraScale+: Arm DDI 0500 (2.1 "About the Cortex-A53 processor functions", 5.1 "About the MMU"), AMD UG1085
    /// ("L2 Memory Subsystem"). What the L2 gives up is not documented. 13 cycles to the L2 are the usual figure; 150 to memory are 125 ns at
    /// 1.2 GHz, as DDR4 of such boards has.
    pub const CORTEX_A53: Self = Self {
        l1i: Shape::new(32 << 10, 2, Replacement::Random),
        l1d: Shape::new(32 << 10, 4, Replacement::Random),
        l2: Shape::new(1 << 20, 16, Replacement::Random),
        tlb: Shape::new(512, 4, Replacement::Random),
        walk_cache: Shape::new(64, 4, Replacement::Random),
        ipa_cache: Shape::new(64, 4, Replacement::Random),
        l2_cycles: 13,
        memory_cycles: 150,
    };

    /// Four Cortex-A72 as in a Raspberry Pi 4: Arm DDI 0488 (2.1 "About the Cortex-A72 processor functions", 5.2 "TLB organization"); its L2 is 1 MiB there.
    pub const CORTEX_A72: Self = Self {
        l1i: Shape::new(48 << 10, 3, Replacement::Lru),
        l1d: Shape::new(32 << 10, 2, Replacement::Lru),
        l2: Shape::new(1 << 20, 16, Replacement::Random),
        tlb: Shape::new(1024, 4, Replacement::Lru),
        walk_cache: Shape::new(64, 4, Replacement::Lru),
        ipa_cache: Shape::new(64, 4, Replacement::Lru),
        l2_cycles: 18,
        memory_cycles: 190,
    };

    /// Number of page colours of the L2: sets of pages that share no set of lines.
    pub const fn colours(&self) -> u64 {
        let way = self.l2.size / self.l2.ways;
        if way > 4096 { way / 4096 } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_megabyte_with_sixteen_ways_has_sixteen_colours() {
        assert_eq!(Geometry::CORTEX_A53.colours(), 16);
        assert_eq!(Geometry::CORTEX_A72.colours(), 16);
        let mut small = Geometry::CORTEX_A53;
        small.l2.size = 64 << 10;
        assert_eq!(small.colours(), 1);
    }
}
