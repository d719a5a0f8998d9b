//! Boards that are measured, and the same without a hypervisor.

use std::path::Path;

use super::subject::COUNTER;
use crate::cmd::build::Built;
use crate::failure::Failure;
use crate::run::{Clock, Qemu, Start};

/// The board that a system is for, with a counter of which each tick is a nanosecond, on QEMU's instruction clock: an
/// instruction takes 2^`shift` nanoseconds.
///
/// # Errors
///
/// The system is for no emulated board.
pub(super) fn board(built: &Built, shift: u8) -> Result<Qemu, Failure> {
    let emulated = built.planned.board.emulated.as_ref();
    let name = &built.planned.name;
    let none = || Failure::input(format!("`{name}` is for no emulated board"), "", "");
    let mut qemu = emulated.ok_or_else(none)?.qemu(&built.image);
    qemu.cpu.push_str(COUNTER);
    qemu.clock = Clock::Instructions { shift };
    Ok(qemu)
}

/// The board with the first VM on it as if it were its own: at EL1, with its memory, its device tree, its kernel and RAM disk,
/// which are written to `folder`.
///
/// # Errors
///
/// The system has no VM with a kernel, or it cannot be written.
pub(super) fn native(built: &Built, shift: u8, folder: &Path) -> Result<Qemu, Failure> {
    let name = &built.planned.name;
    let Some(vm) = built.planned.vms.first() else {
        return Err(Failure::input(format!("`{name}` has no VM"), "", ""));
    };
    let file = |what: &str| {
        let load = vm.loads.iter().find(|load| load.what == what);
        let load = load.ok_or_else(|| Failure::input(format!("`{name}` has no {what}"), "", ""))?;
        let path = folder.join(what);
        std::fs::write(&path, &load.bytes)
            .map_err(|error| Failure::environment("cannot prepare the measurement", error, ""))?;
        Ok::<_, Failure>(path)
    };
    let memory = vm.regions.iter().find(|region| region.what == "RAM");
    let mut qemu = board(built, shift)?;
    qemu.machine = qemu.machine.replace(",virtualization=on", "");
    qemu.memory_mib = memory.map_or(0, |region| region.region.size >> 20);
    qemu.image = file("kernel")?;
    qemu.start = Start::Native {
        tree: file("device tree")?,
        initrd: Some(file("initial RAM disk")?),
    };
    Ok(qemu)
}
