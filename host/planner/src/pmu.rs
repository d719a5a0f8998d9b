//! Performance monitors of VMs: who may have them, and by which interrupts CPUs tell that a counter has overflowed.

use bulkhead_model::board::Board;
use bulkhead_model::describe::{Code, Finding, System, VmSpec};

use super::planned::PlannedCpu;

/// Enters the interrupts for VMs that have performance monitors, and reports who cannot have them.
pub(super) fn plan(
    system: &System,
    board: &Board,
    cpus: &mut [PlannedCpu],
    findings: &mut Vec<Finding>,
) {
    for (vm, spec) in system.vms.iter().enumerate() {
        let Some(place) = &spec.pmu else { continue };
        if spec.interrupts.is_gppt() {
            findings.push(
                Finding::new(
                    Code::PmuMode,
                    "a VM that takes its interrupts itself has no performance monitors",
                )
                .at(place.clone(), "EL2 would not be told of overflows")
                .also(spec.interrupts.stated.clone(), "without an exit")
                .help("leave `pmu` out, or give the VM interrupts = \"vgic\""),
            );
            continue;
        }
        if let Some(cpu) = give_interrupts(vm, spec, board, cpus) {
            findings.push(
                Finding::new(
                    Code::PmuBoard,
                    format!("CPU {cpu} of this board does not tell when a counter overflows"),
                )
                .at(place.clone(), "counted there")
                .also(
                    system.board.as_ref().map(|board| board.place()),
                    "its device tree has no interrupt of performance monitors (arm,armv8-pmuv3) for it",
                )
                .help("leave `pmu` out, or give a device tree that has it"),
            );
        }
    }
}

/// Gives each CPU to which a vCPU of VM number `vm` may come the interrupt of its counters. Returns the first one that has none.
pub(super) fn give_interrupts(
    vm: usize,
    spec: &VmSpec,
    board: &Board,
    cpus: &mut [PlannedCpu],
) -> Option<usize> {
    let mut lacks = None;
    for cpu in cpus.iter_mut() {
        let comes = cpu.vcpus.iter().any(|(of, _)| *of == vm) || { spec.cpu.pool.iter() }
            .any(|pooled| pooled.value as usize == cpu.cpu);
        if !comes {
            continue;
        }
        match board.cpus[cpu.cpu].pmu_intid {
            Some(intid) => cpu.pmu_intid = intid,
            None => lacks = lacks.or(Some(cpu.cpu)),
        }
    }
    lacks
}
