//! Which devices a VM can have, and why not the others.

use serde::Serialize;

use super::parts::{Range, is_iommu};
use crate::board::{Entry, Tree, pass_entry};

/// A device with registers in memory.
#[derive(Clone, Debug, Serialize)]
pub struct Device {
    /// Path in the board's tree: what `devices` of a VM names.
    pub path: String,
    /// Words of `compatible`.
    pub compatible: Vec<String>,
    /// Registers.
    pub registers: Vec<Range>,
    /// INTIDs, where it can be passed through.
    pub intids: Vec<u32>,
    /// Whether firmware leaves it for use.
    pub enabled: bool,
    /// Whether its accesses go through an IOMMU.
    pub behind_iommu: bool,
    /// Whether a VM can have it.
    pub passes: bool,
    /// Whether a VM could have it if the description declared that it does no DMA (`dma = "none"`).
    pub passes_declared: bool,
    /// Why not; empty if it can.
    pub why: String,
    /// Remedy; empty if there is none.
    pub help: String,
}

/// Whether a node is a device that a VM might use: not memory, CPUs, buses or a device that EL2 itself needs.
fn is_device(entry: &Entry) -> bool {
    let words = entry.compatible();
    let bus = |word: &String| word == "simple-bus" || word == "simple-pm-bus";
    let arm = words.iter().any(|word| word.starts_with("arm,"));
    let takes = entry.bytes("interrupt-controller").is_some() && !entry.is("arm,pl061");
    let part = arm && (takes || is_iommu(entry));
    entry.mapped
        && !entry.registers.is_empty()
        && !words.is_empty()
        && !words.iter().any(bus)
        && !part
        && !words
            .iter()
            .any(|word| word.contains("gic-v3-its") || word.contains("gic-v2m"))
        && !entry.path.starts_with("/reserved-memory/")
        && !entry.path.starts_with("/cpus/")
}

/// All devices in the order of the tree; `console` is the path of that of the board.
pub(super) fn read(tree: &Tree, console: &str) -> Vec<Device> {
    let nodes = tree.entries.iter().filter(|entry| is_device(entry));
    nodes
        .map(|entry| {
            let (known, refusal) = match pass_entry(tree, entry, console, false) {
                Ok(passed) => (Some(passed), None),
                Err(refusal) => (None, Some(refusal)),
            };
            let passes = known.is_some();
            let declared = || pass_entry(tree, entry, console, true).ok();
            let passed = known.or_else(declared);
            let irqs = passed.iter().flat_map(|passed| &passed.irqs);
            let (why, help) = refusal.map_or_else(Default::default, |no| (no.why, no.help));
            Device {
                path: entry.path.clone(),
                compatible: entry.compatible(),
                registers: entry.registers.iter().map(Range::of).collect(),
                intids: irqs.map(|irq| irq.intid).collect(),
                enabled: entry.is_enabled(),
                behind_iommu: entry.bytes("iommus").is_some(),
                passes,
                passes_declared: !passes && passed.is_some(),
                why,
                help,
            }
        })
        .collect()
}
