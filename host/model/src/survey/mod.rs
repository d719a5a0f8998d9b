//! Everything that a board's device tree says about what a hypervisor has to know: CPUs and their caches, memory,
//! interrupt controller, timers, UARTs, SMMUs; what can be passed through to a VM, and what EL2 lacks for the board.

mod cpus;
mod devices;
mod obstacles;
mod parts;
mod text;

use dtoolkit::fdt::Fdt;
use serde::Serialize;

use crate::board::{self, Tree};

pub use cpus::{Cache, Cluster, Cpu, Cpus};
pub use devices::Device;
pub use obstacles::Obstacle;
pub use parts::{Gic, Iommu, Timers, Uart};

/// A range of physical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Range {
    /// First byte.
    pub base: u64,
    /// Bytes.
    pub size: u64,
}

impl Range {
    fn of(&(base, size): &(u64, u64)) -> Self {
        Self { base, size }
    }
}

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

impl Survey {
    /// Reads a tree, as [`crate::board`] opens it.
    ///
    /// # Errors
    /// Why it is no tree of a board, in words that go on after "it is".
    pub fn read(bytes: Vec<u8>) -> Result<Self, String> {
        let bytes = board::open(bytes)?;
        let fdt = Fdt::new(&bytes).map_err(|why| why.to_string())?;
        let tree = Tree::new(fdt);
        if tree.find("/images").is_some() && tree.find("/configurations").is_some() {
            return Err("a FIT image, which may hold a device tree".to_owned());
        }
        let overlay = |path: &str| path.ends_with("/__overlay__");
        if tree.entries.iter().any(|entry| overlay(&entry.path)) {
            return Err("an overlay for a device tree, and no board".to_owned());
        }
        let root = tree.entries.first();
        let uarts = parts::uarts(&tree);
        let console = uarts.iter().find(|uart| uart.console);
        let console = console.map_or("", |uart| uart.path.as_str());
        let mut survey = Self {
            model: root.and_then(|root| root.text("model")).unwrap_or_default(),
            compatible: root.map_or_else(Vec::new, |root| root.compatible()),
            cpus: cpus::read(&tree),
            memory: parts::memory(&tree),
            reserved: parts::reserved(&tree, fdt),
            interrupt_controllers: parts::controllers(&tree),
            timers: parts::timers(&tree),
            iommus: parts::iommus(&tree),
            devices: devices::read(&tree, console),
            uarts,
            obstacles: Vec::new(),
        };
        survey.obstacles = obstacles::find(&survey, &tree, &bytes);
        Ok(survey)
    }

    /// The survey as text; refused devices that are alike share a line unless `whole`.
    pub fn text(&self, whole: bool) -> String {
        text::text(self, whole)
    }

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

#[cfg(test)]
mod tests;
