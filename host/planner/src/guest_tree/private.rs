//! What each vCPU has for itself, with its private interrupts: timers and performance monitors.

use bulkhead_abi::plan::VM_PMU_INTID;

use super::build::Build;
use super::{GuestTree, LEVEL};

impl GuestTree<'_> {
    /// Cells of a private interrupt that is level-sensitive.
    fn ppi(&self, number: u32) -> [u32; 3] {
        // On a GICv2 the flags of a PPI also say which CPUs have it, a bit for each.
        let everywhere = match self.gic.version {
            2 => ((1 << self.cpus.len()) - 1) << 8,
            _ => 0,
        };
        [1, number - 16, LEVEL | everywhere]
    }

    /// The performance monitors, by the name of those of its CPUs where these are all of one kind: Linux knows the events of each.
    pub(super) fn pmu(&self) -> Build {
        let first = self.cpus.first().map_or("", |(_, compatible)| compatible);
        let known = first.starts_with("arm,") && self.cpus.iter().all(|(_, other)| *other == first);
        let own = format!("{first}-pmu");
        let words: &[&str] = match known {
            true => &[&own, "arm,armv8-pmuv3"],
            false => &["arm,armv8-pmuv3"],
        };
        Build::new("pmu")
            .texts("compatible", words)
            .cells("interrupts", &self.ppi(VM_PMU_INTID))
    }

    /// The generic timer.
    pub(super) fn timer(&self) -> Build {
        Build::new("timer")
            .texts("compatible", &["arm,armv8-timer"])
            .cells(
                "interrupts",
                &[29, 30, 27, 26].map(|number| self.ppi(number)).concat(),
            )
            .bytes("always-on", &[])
    }
}
