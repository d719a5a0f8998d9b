//! What is known of a board.

use serde::Serialize;

use super::cpus::Cpus;
use super::devices::Device;
use super::parts::{Gic, Iommu, Range, Timers, Uart};

/// What a board's tree says.
#[derive(Clone, Debug, Serialize)]
pub struct Survey {
    /// What its maker calls it.
    pub model: String,
    /// Words of the root's `compatible`.
    pub compatible: Vec<String>,
    /// CPUs, clusters, caches.
    #[serde(flatten)]
    pub cpus: Cpus,
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
    /// What it is about: "CPUs", "GIC", "timer", "console", "memory".
    pub part: &'static str,
    /// What is so.
    pub what: String,
    /// Why that matters.
    pub why: String,
    /// What to do.
    pub help: String,
}

impl Survey {
    /// One line: the board's name for itself.
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
