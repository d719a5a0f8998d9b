//! The caches by whose colours memory is divided.

use std::fmt::Write;

use bulkhead_abi::plan::ALL_COLOURS;
use serde::Serialize;

use crate::{Planned, PlannedCpu};

/// The last cache of a CPU.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Cache {
    /// Which it is: CPUs with the same number share it.
    number: usize,
    colours: u32,
}

/// Whether anything keeps to colours.
fn are_used(planned: &Planned) -> bool {
    let mut regions = planned.vms.iter().flat_map(|vm| &vm.regions);
    planned.image.colours != ALL_COLOURS
        || regions.any(|mapped| mapped.region.colours != ALL_COLOURS)
}

/// The cache of a CPU; none if nothing keeps to colours.
pub(super) fn of_cpu(planned: &Planned, cpu: &PlannedCpu) -> Option<Cache> {
    let mut caches = planned.board.caches.iter().enumerate();
    let (number, cache) = caches.find(|(_, cache)| cache.cpus.contains(&cpu.cpu))?;
    are_used(planned).then_some(Cache {
        number,
        colours: cache.colours,
    })
}

/// Writes a line for each cache, if something keeps to colours and there are several.
pub(super) fn write(planned: &Planned, out: &mut String) -> std::fmt::Result {
    let caches = &planned.board.caches;
    if caches.len() < 2 || !are_used(planned) {
        return Ok(());
    }
    for cache in caches {
        let have = match cache.cpus.len() {
            1 => "has",
            _ => "share",
        };
        writeln!(
            out,
            "  {} {have} a cache of {} colours",
            cache.cpus_text(),
            cache.colours
        )?;
    }
    Ok(())
}
