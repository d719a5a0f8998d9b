//! Which VM runs on which CPU, and which CPU drains the console.

use bulkhead_abi::plan::Class;

use super::PlannedCpu;
use crate::board::Board;
use crate::describe::{Finding, System};

/// Gives each VM a CPU of its own: those that name one first, then the others in their order. The
/// first CPU boots, so it is always among the pCPUs; other CPUs without work stay off.
pub(super) fn assign(
    system: &System,
    board: &Board,
    findings: &mut Vec<Finding>,
) -> Vec<PlannedCpu> {
    let count = board.cpus.len();
    let mut owner: Vec<Option<usize>> = vec![None; count];
    let cpus_of_board = if count == 1 {
        "1 CPU".to_owned()
    } else {
        format!("{count} CPUs")
    };
    for (vm, spec) in system.vms.iter().enumerate() {
        let Some(wish) = &spec.pcpu else { continue };
        let number = wish.value as usize;
        match owner.get(number).copied() {
            None => findings.push(
                Finding::new(
                    "bulkhead::pcpu::unknown",
                    format!("the board has no CPU {number}"),
                )
                .at(
                    wish.span.clone(),
                    format!("it has {cpus_of_board}, counted from 0"),
                ),
            ),
            Some(None) => owner[number] = Some(vm),
            Some(Some(other)) => {
                let other = &system.vms[other];
                let free = owner.iter().position(Option::is_none);
                let mut finding = Finding::new(
                    "bulkhead::pcpu::shared",
                    format!(
                        "`{}` and `{}` want the same CPU",
                        other.name.value, spec.name.value
                    ),
                )
                .at(
                    wish.span.clone(),
                    format!("`{}` wants CPU {number}", spec.name.value),
                );
                if let Some(first) = &other.pcpu {
                    finding = finding.at(
                        first.span.clone(),
                        format!("`{}` has it already", other.name.value),
                    );
                }
                findings.push(match free {
                    Some(free) => finding.help(format!(
                        "CPU {free} is free; without `pcpus` the planner chooses one"
                    )),
                    None => finding.help("this version runs one vCPU on each CPU"),
                });
            }
        }
    }
    for (vm, spec) in system.vms.iter().enumerate() {
        if spec.pcpu.is_some() {
            continue;
        }
        match owner.iter().position(Option::is_none) {
            Some(free) => owner[free] = Some(vm),
            None => findings.push(
                Finding::new(
                    "bulkhead::pcpu::too-few",
                    format!("there is no CPU left for `{}`", spec.name.value),
                )
                .at(
                    spec.name.span.clone(),
                    format!("{} VMs, {cpus_of_board}", system.vms.len()),
                )
                .help("this version runs one vCPU on each CPU; give the board more with `cpus`"),
            ),
        }
    }
    let service = system
        .service
        .as_ref()
        .map(|service| service.value as usize);
    if let Some(wish) = system
        .service
        .as_ref()
        .filter(|wish| wish.value as usize >= count)
    {
        findings.push(
            Finding::new(
                "bulkhead::console::service",
                format!("the board has no CPU {}", wish.value),
            )
            .at(
                wish.span.clone(),
                format!("it has {cpus_of_board}, counted from 0"),
            ),
        );
    }
    (0..count)
        .filter(|&cpu| cpu == 0 || owner[cpu].is_some() || service == Some(cpu))
        .map(|cpu| PlannedCpu {
            cpu,
            mpidr: board.cpus[cpu].mpidr,
            vm: owner[cpu],
            service: service == Some(cpu),
        })
        .collect()
}

/// Chooses the CPU that drains the console, if the description does not: that of the management VM,
/// else of the first VM that is not real-time, else one without a VM, else the first.
pub(super) fn choose_service(
    system: &System,
    cpus: &mut [PlannedCpu],
    findings: &mut Vec<Finding>,
) {
    let class = |cpu: &PlannedCpu| cpu.vm.map(|vm| system.vms[vm].class);
    if !cpus.iter().any(|cpu| cpu.service) {
        let ranks = [
            Some(Class::Management),
            Some(Class::General),
            None,
            Some(Class::SoftRealtime),
        ];
        let best = ranks
            .iter()
            .find_map(|rank| cpus.iter().position(|cpu| class(cpu) == *rank))
            .unwrap_or(0);
        if let Some(cpu) = cpus.get_mut(best) {
            cpu.service = true;
        }
        return;
    }
    let hard = cpus
        .iter()
        .find(|cpu| cpu.service && class(cpu) == Some(Class::HardRealtime));
    if let (Some(cpu), Some(wish)) = (hard, &system.service) {
        findings.push(
            Finding::new(
                "bulkhead::console::realtime",
                format!(
                    "the console is drained on CPU {}, which has a hard-realtime VM",
                    cpu.cpu
                ),
            )
            .at(
                wish.span.clone(),
                "interrupts of the UART will interrupt that VM",
            )
            .help("choose another CPU, or leave `service` out")
            .harmless(),
        );
    }
}
