//! Doorbells: their pages, and SPIs of the board for VMs that take their interrupts themselves
//! (`docs/adr/0019-doorbells.md`).

use std::collections::BTreeSet;

use bulkhead_abi::plan::{Doorbell, IRQ_DOORBELL, IRQ_EDGE, Irq, PAGE};

use super::{emulated, spis};
use crate::board::Board;
use crate::describe::{Code, Finding, System};

/// Where VMs find the pages by which they ring, unless they have something else there; QEMU's `virt` has nothing.
const PAGES: u64 = 0x0920_0000;

/// A doorbell as planned.
#[derive(Clone, Debug)]
pub struct PlannedDoorbell {
    /// Name.
    pub name: String,
    /// Index of the VM that rings.
    pub from: usize,
    /// Index of the VM that hears it.
    pub to: usize,
    /// IPA of the page by which it is rung; final once that VM is arranged.
    pub ipa: u64,
    /// INTID by which it is heard.
    pub intid: u32,
    /// Whether that is an SPI of the board.
    pub physical: bool,
    /// Nanoseconds from one interrupt to the next at least.
    pub apart: u64,
    /// Name of the shared memory that it is about.
    pub shared: Option<String>,
}

impl PlannedDoorbell {
    /// Its row in the plan.
    pub(super) fn row(&self) -> Doorbell {
        Doorbell {
            vm: self.from as u16,
            to: self.to as u16,
            vintid: self.intid as u16,
            pintid: if self.physical { self.intid as u16 } else { 0 },
            ipa: self.ipa,
            apart: self.apart,
        }
    }

    /// The row of its interrupt, if that is one of the board's.
    pub(super) fn irq(&self) -> Option<Irq> {
        self.physical.then_some(Irq {
            vm: self.to as u16,
            vintid: self.intid as u16,
            pintid: self.intid as u16,
            flags: IRQ_EDGE | IRQ_DOORBELL,
        })
    }
}

/// The doorbells of a system, in the order of the VMs that ring. INTIDs of vGICs come later, by [`hear`].
pub(super) fn assign(
    system: &System,
    board: &Board,
    findings: &mut Vec<Finding>,
) -> Vec<PlannedDoorbell> {
    let version = board.parts.gic_version;
    let mut free: Option<BTreeSet<u32>> = None;
    let mut doorbells: Vec<PlannedDoorbell> = Vec::new();
    let mut specs: Vec<_> = system.doorbells.iter().collect();
    specs.sort_by_key(|spec| spec.from);
    for spec in specs {
        let before = doorbells.iter().filter(|other| other.from == spec.from);
        let ipa = PAGES + PAGE * before.count() as u64;
        let physical = system.vms[spec.to.value].interrupts.own(version).is_some();
        let mut intid = 0;
        if physical {
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
                        "takes its interrupts itself, and needs one of the board's that no device has",
                    )
                    .also(
                        system.board.as_ref().map(|board| board.place()),
                        "all of its interrupts have an owner",
                    )
                    .help("say interrupts = \"vgic\" for the VM that hears it: then EL2 makes the interrupt"),
                );
                continue;
            };
            intid = last;
        }
        doorbells.push(PlannedDoorbell {
            name: spec.name.value.clone(),
            from: spec.from,
            to: spec.to.value,
            ipa,
            intid,
            physical,
            apart: spec.apart,
            shared: spec
                .shared
                .map(|index| system.shared[index].name.value.clone()),
        });
    }
    doorbells
}

/// Gives doorbells into VM `vm` INTIDs that nothing else of it has.
pub(super) fn hear(vm: usize, doorbells: &mut [PlannedDoorbell], taken: &mut Vec<u32>) {
    let mut next = emulated::EVENT_INTID + 1;
    for bell in doorbells.iter_mut().filter(|bell| bell.to == vm) {
        if !bell.physical {
            while taken.contains(&next) {
                next += 1;
            }
            bell.intid = next;
        }
        taken.push(bell.intid);
    }
}
