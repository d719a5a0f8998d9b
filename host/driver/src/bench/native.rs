//! Boards that are measured, and the same without a hypervisor.

use std::path::{Path, PathBuf};

use bulkhead_model::failure::Failure;
use bulkhead_runner::build::Built;
use bulkhead_runner::emulated;
use bulkhead_runner::run::{Clock, Qemu, Start};

use super::subject::COUNTER;

/// The board that a system is for, with a counter of which each tick is a nanosecond, on QEMU's instruction clock: an
/// instruction takes 2^`shift` nanoseconds.
///
/// # Errors
///
/// The system is for no emulated board.
pub(crate) fn board(built: &Built, shift: u8) -> Result<Qemu, Failure> {
    let board = built.planned.board.emulated.as_ref();
    let name = &built.planned.name;
    let none = || Failure::input(format!("`{name}` is for no emulated board"), "", "");
    let base = built.planned.image.base;
    let mut qemu = emulated::qemu(board.ok_or_else(none)?, &built.image, base)?;
    qemu.cpu.push_str(COUNTER);
    qemu.clock = Clock::Instructions { shift };
    Ok(qemu)
}

/// The board with what the first VM on it has, as if it were its own: at EL1, with its memory and its device tree,
/// which is written to `folder`. The program that runs on it is still to be set.
///
/// # Errors
///
/// The system has no VM with a device tree, or that cannot be written.
pub(super) fn bare(built: &Built, shift: u8, folder: &Path) -> Result<Qemu, Failure> {
    let tree = file(built, "device tree", folder)?;
    let regions = built.planned.vms.iter().take(1).flat_map(|vm| &vm.regions);
    let memory = regions.into_iter().find(|region| region.what == "RAM");
    let mut qemu = board(built, shift)?;
    qemu.machine = qemu.machine.replace(",virtualization=on", "");
    qemu.memory_mib = memory.map_or(0, |region| region.region.size >> 20);
    qemu.start = Start::Native { tree, initrd: None };
    Ok(qemu)
}

/// The same with the VM's kernel and RAM disk.
///
/// # Errors
///
/// It has none, or as for [`bare`].
pub(super) fn native(built: &Built, shift: u8, folder: &Path) -> Result<Qemu, Failure> {
    let mut qemu = bare(built, shift, folder)?;
    qemu.image = file(built, "kernel", folder)?;
    if let Start::Native { initrd, .. } = &mut qemu.start {
        *initrd = Some(file(built, "initial RAM disk", folder)?);
    }
    Ok(qemu)
}

/// Writes the payload of the first VM that is called `what` into `folder`; returns its path.
fn file(built: &Built, what: &str, folder: &Path) -> Result<PathBuf, Failure> {
    let payloads = built.planned.vms.iter().take(1).flat_map(|vm| &vm.payloads);
    let name = &built.planned.name;
    let payload = payloads
        .into_iter()
        .find(|payload| payload.what == what)
        .ok_or_else(|| Failure::input(format!("the first VM of `{name}` has no {what}"), "", ""))?;
    let path = folder.join(what);
    std::fs::write(&path, payload.bytes.as_slice())
        .map_err(|error| Failure::environment("cannot prepare the measurement", error, ""))?;
    Ok(path)
}
