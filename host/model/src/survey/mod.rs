//! Everything that a board's device tree says about what a hypervisor has to know: CPUs and their caches, memory,
//! interrupt controller, timers, UARTs, SMMUs; what can be passed through to a VM, and what EL2 lacks for the board.

mod cpus;
mod devices;
mod facts;
mod obstacles;
mod parts;
mod text;

use bulkhead_abi::plan::Memory;
use dtoolkit::fdt::Fdt;

use crate::board::{self, FirmwareTold, Tree};

pub use cpus::{Cache, Cluster, Cpu, Cpus};
pub use devices::Device;
pub use facts::{Obstacle, Survey};
pub use parts::{Gic, Iommu, Range, Timers, Uart};

impl Survey {
    /// Reads a tree, as [`board::open`] opens it.
    ///
    /// # Errors
    /// Why it is no tree of a board, in words that go on after "it is".
    pub fn read(bytes: Vec<u8>) -> Result<Self, String> {
        Self::read_with(bytes, &[])
    }

    /// The same; the memory is `stated` if the tree tells of none.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_with(bytes: Vec<u8>, stated: &[Memory]) -> Result<Self, String> {
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
            firmware: FirmwareTold::read(&tree),
            memory: parts::memory(&tree),
            reserved: parts::reserved(&tree, fdt),
            interrupt_controllers: parts::controllers(&tree),
            timers: parts::timers(&tree),
            iommus: parts::iommus(&tree),
            devices: devices::read(&tree, console),
            uarts,
            obstacles: Vec::new(),
        };
        if survey.memory.iter().all(|range| range.size == 0) && !stated.is_empty() {
            let ranges = stated.iter().map(|range| (range.base, range.size));
            survey.memory = ranges.map(|range| Range::of(&range)).collect();
        }
        survey.obstacles = obstacles::find(&survey, &tree, (&bytes, stated));
        Ok(survey)
    }

    /// The survey as text; refused devices that are alike share a line unless `whole`.
    pub fn text(&self, whole: bool) -> String {
        text::text(self, whole)
    }
}

#[cfg(test)]
mod tests;
