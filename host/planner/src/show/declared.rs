//! Devices that a description declares free of DMA: what is said of each.

use std::fmt::{Result, Write as _};

use bulkhead_model::board::{Lack, PassthroughDevice};
use serde::Serialize;

use crate::planned::PlannedVm;

/// A device that does no DMA by the description's word alone.
#[derive(Serialize)]
pub(super) struct Declared<'a> {
    device: &'a str,
    /// Nodes that it refers to and the VM does not have: they stay as firmware left them.
    lacks: &'a [Lack],
    /// Whether its node has no clocks, because the tree does not tell how fast all of them are.
    clockless: bool,
    /// Whether it is quieted before the VM starts again; else it stays as it was left.
    quieted: bool,
}

fn all(vm: &PlannedVm) -> impl Iterator<Item = &PassthroughDevice> {
    let devices = vm.devices.iter().map(|(device, _)| device);
    devices.filter(|device| device.declared)
}

/// Those of a VM.
pub(super) fn of(vm: &PlannedVm) -> Vec<Declared<'_>> {
    let devices = all(vm).map(|device| Declared {
        device: &device.path,
        lacks: &device.lacks,
        clockless: device.clockless,
        quieted: !device.quiets.is_empty(),
    });
    devices.collect()
}

/// Says for each what its VM has to know.
pub(super) fn write(vm: &PlannedVm, out: &mut String) -> Result {
    for device in all(vm) {
        writeln!(
            out,
            "  no DMA     by the description's word: {}",
            device.path
        )?;
        for lack in &device.lacks {
            writeln!(
                out,
                "             `{}` is not the VM's and stays as firmware left it: {}",
                lack.property, lack.path
            )?;
        }
        if device.clockless {
            writeln!(
                out,
                "             the tree does not tell its clocks' rates, so its node has none: Linux drivers that need them will probably not probe"
            )?;
        }
        if device.quiets.is_empty() {
            writeln!(
                out,
                "             before the VM starts again it stays as it was left: no writes are known that quiet it"
            )?;
        }
    }
    Ok(())
}
