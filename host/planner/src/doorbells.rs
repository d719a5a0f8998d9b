//! Doorbells: their pages, and SPIs of the board for GPPT VMs
//! (`docs/adr/0019-doorbells.md`).

use std::collections::BTreeSet;

use bulkhead_abi::plan::PAGE;

use bulkhead_model::board::Board;
use bulkhead_model::describe::{Code, CpuTime, Finding, System};

use super::{PlannedCpu, PlannedDoorbell, PlannedIo, spis};

/// IPA of the first page by which a VM rings, unless it has something else there; QEMU's `virt` has nothing.
const PAGES: u64 = 0x0920_0000;

/// The doorbells of a system, in the order of the VMs that ring. INTIDs of vGICs come later, by [`assign_intids`], and
/// so do the SPIs that make those pending, by [`assign_spis`].
pub(super) fn assign(
    system: &System,
    board: &Board,
    findings: &mut Vec<Finding>,
) -> Vec<PlannedDoorbell> {
    let gic = board.gic();
    let mut free: Option<BTreeSet<u32>> = None;
    let mut doorbells: Vec<PlannedDoorbell> = Vec::new();
    let mut specs: Vec<_> = system.doorbells.iter().collect();
    specs.sort_by_key(|spec| spec.from);
    for spec in specs {
        let before = doorbells.iter().filter(|other| other.from == spec.from);
        let ipa = PAGES + PAGE * before.count() as u64;
        let is_gppt = system.vms[spec.to.value].interrupts.gppt(gic).is_some();
        let mut spi = None;
        if is_gppt {
            let free = free.get_or_insert_with(|| spis::free(board));
            let Some(last) = free.pop_last() else {
                findings.push(
                    Finding::new(
                        Code::DoorbellSpi,
                        format!(
                            "the board has no interrupt left for doorbell `{}`",
                            spec.name.value
                        ),
                    )
                    .at(
                        spec.to.span.clone(),
                        "is a GPPT VM, and needs an SPI of the board that no device has",
                    )
                    .also(
                        system.board.as_ref().map(|board| board.place()),
                        "all of its interrupts have an owner",
                    )
                    .help("say interrupts = \"vgic\" for the VM that hears it: then EL2 makes the interrupt"),
                );
                continue;
            };
            spi = Some(last);
        }
        doorbells.push(PlannedDoorbell {
            name: spec.name.value.clone(),
            from: spec.from,
            to: spec.to.value,
            ipa,
            intid: spi.unwrap_or(0),
            spi,
            apart: spec.apart,
            shared: spec
                .shared
                .map(|index| system.shared[index].name.value.clone()),
            is_added: spec.is_added,
        });
    }
    doorbells
}

/// Gives doorbells to VM `vm` INTIDs that nothing else in it has.
pub(super) fn assign_intids(vm: usize, doorbells: &mut [PlannedDoorbell], taken: &mut Vec<u32>) {
    let mut next = spis::EVENT_INTID + 1;
    for bell in doorbells.iter_mut().filter(|bell| bell.to == vm) {
        if bell.spi.is_none() {
            while taken.contains(&next) {
                next += 1;
            }
            bell.intid = next;
        }
        taken.push(bell.intid);
    }
}

/// Gives doorbells to VMs with a vGIC, and then their virtio devices, SPIs of the board that nothing else needs, where an interrupt costs less by one: it
/// comes as that of a device of the board does, and nobody else's CPU has to tell the vGIC. That is where each vCPU of the VM has its CPU for itself, so that no switch comes
/// between. Where firmware has a Security state of its own nobody knows to which of the two an SPI belongs that no device has: EL2 tries each, and without
/// it an interrupt is latched.
pub(super) fn assign_spis(
    board: &Board,
    (cpus, times): (&[PlannedCpu], &[CpuTime]),
    doorbells: &mut [PlannedDoorbell],
    io: Option<&mut PlannedIo>,
) {
    let mut free = spis::free(board);
    let calls = cpus.iter().map(|cpu| u32::from(cpu.call_spi));
    let calls = calls.flat_map(|first| [first, first + 1]);
    for used in calls.chain(doorbells.iter().filter_map(|bell| bell.spi)) {
        free.remove(&used);
    }
    let is_alone = |vm: usize| times[vm] == CpuTime::Pinned;
    let bells = doorbells.iter_mut().filter(|bell| bell.spi.is_none());
    let bells = bells.filter(|bell| is_alone(bell.to));
    let devices = io.into_iter().flat_map(|io| &mut io.devices);
    let devices = devices.filter(|device| device.poll.is_none() && is_alone(device.vm));
    let places = bells.map(|bell| &mut bell.spi);
    for place in places.chain(devices.map(|device| &mut device.spi)) {
        *place = free.pop_last();
    }
}
