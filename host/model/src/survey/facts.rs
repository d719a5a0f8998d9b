//! Contents of a board survey.

use serde::Serialize;

use super::cpus::Cpus;
use super::devices::Device;
use super::parts::{Gic, Iommu, Range, Timers, Uart};
use crate::board::FirmwareTold;

/// Properties of a board, from its device tree.
#[derive(Clone, Debug, Serialize)]
pub struct Survey {
    /// Name that the maker gives it (`model`).
    pub model: String,
    /// Words of the root's `compatible`.
    pub compatible: Vec<String>,
    /// CPUs, clusters, caches.
    #[serde(flatten)]
    pub cpus: Cpus,
    /// What the tree tells of the firmware.
    pub firmware: FirmwareTold,
    /// Memory; ranges of no size are those that firmware fills in.
    pub memory: Vec<Range>,
    /// Memory that firmware keeps.
    pub reserved: Vec<Range>,
    /// Interrupt controllers on which CPUs' interrupts may arrive; EL2 would use the first that it knows.
    pub interrupt_controllers: Vec<Gic>,
    /// The generic timer.
    pub timers: Option<Timers>,
    /// UARTs.
    pub uarts: Vec<Uart>,
    /// SMMUs and other IOMMUs.
    pub iommus: Vec<Iommu>,
    /// Everything else with registers in memory.
    pub devices: Vec<Device>,
    /// Why Bulkhead cannot run on the board; none: it can, as far as the tree tells.
    pub obstacles: Vec<Obstacle>,
}

/// Something without which EL2 does not run on the board.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Obstacle {
    /// Part of the board: "CPUs", "firmware", "GIC", "timer", "console", "memory".
    pub part: &'static str,
    /// Statement of the obstacle.
    pub what: String,
    /// Reason why that matters.
    pub why: String,
    /// Remedy.
    pub help: String,
}

impl Survey {
    /// Name of the board in one line, as its tree states it.
    pub fn title(&self) -> String {
        let first = self.compatible.first().cloned().unwrap_or_default();
        match (self.model.as_str(), first.as_str()) {
            ("", "") => "a board without a name".to_owned(),
            ("", first) => first.to_owned(),
            (model, first) if first.is_empty() || first == model => model.to_owned(),
            (model, first) => format!("{model} ({first})"),
        }
    }
}
