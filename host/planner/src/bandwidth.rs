//! Budgets of accesses to memory: who may have one, and by what the CPUs count.

use bulkhead_model::board::Board;
use bulkhead_model::describe::{BandwidthSpec, Code, EVENTS, Finding, System};

use super::planned::{Accesses, PlannedCpu};
use super::pmu;

/// What counts accesses where the description does not say: on a board, and on an emulated one. QEMU counts no accesses, and the interrupt
/// of its counter of instructions comes with the next exception only (docs/adr/0029-bandwidth.md).
const USUAL: &str = "l2d_cache_refill";
const EMULATED: &str = "cpu_cycles";

/// The name of the event that budgets are of, and its number; none if no VM has one.
pub(super) fn event(system: &System, board: &Board) -> Option<(&'static str, u32)> {
    system.vms.iter().find(|vm| vm.bandwidth.is_some())?;
    let said = system
        .board
        .as_ref()
        .and_then(|spec| spec.access_event.as_ref());
    let usual = match board.emulated {
        Some(_) => EMULATED,
        None => USUAL,
    };
    let name = said.map_or(usual, |said| said.value);
    EVENTS.into_iter().find(|(known, _)| *known == name)
}

/// Budget and period, in nanoseconds, as in the row of a vCPU.
pub(super) fn in_row(spec: Option<&BandwidthSpec>) -> (u32, u64) {
    spec.map_or((0, 0), |spec| (spec.accesses.value, spec.period))
}

/// The same for people.
pub(super) fn accesses(
    spec: Option<&BandwidthSpec>,
    event: Option<&'static str>,
) -> Option<Accesses> {
    let spec = spec?;
    Some(Accesses {
        most: spec.accesses.value,
        period: spec.period,
        event: event?,
    })
}

/// Enters the interrupts by which CPUs tell that a budget is used up, and reports who cannot have one.
pub(super) fn plan(
    system: &System,
    board: &Board,
    cpus: &mut [PlannedCpu],
    findings: &mut Vec<Finding>,
) {
    for (vm, spec) in system.vms.iter().enumerate() {
        let Some(bandwidth) = &spec.bandwidth else {
            continue;
        };
        let place = bandwidth.accesses.span.clone();
        if spec.interrupts.is_gppt() {
            findings.push(
                Finding::new(
                    Code::BandwidthMode,
                    "a VM that takes its interrupts itself has no limit of accesses",
                )
                .at(place, "EL2 would not be told that they are used up")
                .also(spec.interrupts.stated.clone(), "without an exit")
                .help("leave `accesses` out, and limit the VMs beside it, or give the VM interrupts = \"vgic\""),
            );
            continue;
        }
        if let Some(cpu) = pmu::give_interrupts(vm, spec, board, cpus) {
            findings.push(
                Finding::new(
                    Code::BandwidthBoard,
                    format!("CPU {cpu} of this board does not tell when accesses are used up"),
                )
                .at(place, "counted there")
                .also(
                    system.board.as_ref().map(|board| board.place()),
                    "its device tree has no interrupt of performance monitors (arm,armv8-pmuv3) for it",
                )
                .help("leave `accesses` out, or give a device tree that has it"),
            );
        }
    }
}
