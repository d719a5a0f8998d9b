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
            let (passes, why, help, intids) = match pass_entry(tree, entry, console) {
                Ok(passed) => {
                    let intids = passed.irqs.iter().map(|irq| irq.intid).collect();
                    (true, String::new(), String::new(), intids)
                }
                Err(refusal) => (false, refusal.why, refusal.help, Vec::new()),
            };
            Device {
                path: entry.path.clone(),
                compatible: entry.compatible(),
                registers: entry.registers.iter().map(Range::of).collect(),
                intids,
                enabled: entry.is_enabled(),
                behind_iommu: entry.bytes("iommus").is_some(),
                passes,
                why,
                help,
            }
        })
        .collect()
}
