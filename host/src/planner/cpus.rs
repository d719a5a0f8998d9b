//! Which VM runs on which CPU, and which CPU drains the console.

use bulkhead_abi::plan::Class;

use super::PlannedCpu;
use crate::board::Board;
use crate::describe::{Finding, System};

/// A vCPU: index of its VM, its number there.
type Owner = (usize, usize);

/// Gives each vCPU a CPU of its own: those of VMs that name them first, then the others in their order.
/// The first CPU boots, so it is always among the pCPUs; other CPUs without work stay off.
pub(super) fn assign(
    system: &System,
    board: &Board,
    findings: &mut Vec<Finding>,
) -> Vec<PlannedCpu> {
    let count = board.cpus.len();
    let mut owner: Vec<Option<Owner>> = vec![None; count];
    let cpus_of_board = if count == 1 {
        "1 CPU".to_owned()
    } else {
        format!("{count} CPUs")
    };
    for (vm, spec) in system.vms.iter().enumerate() {
        for (number, wish) in spec.pcpus.iter().enumerate() {
            let cpu = wish.value as usize;
            match owner.get(cpu).copied() {
                None => findings.push(
                    Finding::new(
                        "bulkhead::pcpu::unknown",
                        format!("the board has no CPU {cpu}"),
                    )
                    .at(
                        wish.span.clone(),
                        format!("it has {cpus_of_board}, counted from 0"),
                    ),
                ),
                Some(None) => owner[cpu] = Some((vm, number)),
                Some(Some(other)) => {
                    let free = owner.iter().position(Option::is_none);
                    findings.push(shared(system, (vm, number), other, free));
                }
            }
        }
    }
    let vcpus: usize = system.vms.iter().map(|spec| spec.vcpus).sum();
    for (vm, spec) in system.vms.iter().enumerate() {
        if !spec.pcpus.is_empty() {
            continue;
        }
        let free: Vec<usize> = (0..count).filter(|&cpu| owner[cpu].is_none()).collect();
        if free.len() < spec.vcpus {
            let name = &spec.name.value;
            let message = match (free.len(), spec.vcpus) {
                (0, 1) => format!("there is no CPU left for `{name}`"),
                (0, many) => format!("there are no CPUs left for the {many} vCPUs of `{name}`"),
                (left, many) => format!(
                    "there {} left for the {many} vCPUs of `{name}`",
                    if left == 1 {
                        "is only 1 CPU".to_owned()
                    } else {
                        format!("are only {left} CPUs")
                    }
                ),
            };
            findings.push(
                Finding::new("bulkhead::pcpu::too-few", message)
                    .at(
                        spec.name.span.clone(),
                        format!("{vcpus} vCPUs in all, {cpus_of_board}"),
                    )
                    .help("each vCPU has a CPU for itself; give the board more with `cpus`"),
            );
            // It takes none: that the next VM finds none either would only follow from this.
            continue;
        }
        for (number, cpu) in free.into_iter().take(spec.vcpus).enumerate() {
            owner[cpu] = Some((vm, number));
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
            vm: owner[cpu].map(|(vm, _)| vm),
            vcpu: owner[cpu].map_or(0, |(_, number)| number),
            service: service == Some(cpu),
        })
        .collect()
}

/// The finding that two VMs name the same CPU; `free` is one that nobody has yet.
fn shared(system: &System, late: Owner, first: Owner, free: Option<usize>) -> Finding {
    let (other, spec) = (&system.vms[first.0], &system.vms[late.0]);
    let wish = &spec.pcpus[late.1];
    let mut finding = Finding::new(
        "bulkhead::pcpu::shared",
        format!(
            "`{}` and `{}` want the same CPU",
            other.name.value, spec.name.value
        ),
    )
    .at(
        wish.span.clone(),
        format!("`{}` wants CPU {}", spec.name.value, wish.value),
    );
    if let Some(first) = other.pcpus.get(first.1) {
        finding = finding.at(
            first.span.clone(),
            format!("`{}` has it already", other.name.value),
        );
    }
    match free {
        Some(free) => finding.help(format!(
            "CPU {free} is free; without `pcpus` the planner chooses one"
        )),
        None => finding.help("each vCPU has a CPU for itself"),
    }
}

/// Numbers of the CPUs of a VM on the board, by vCPU.
pub(super) fn of_vm(cpus: &[PlannedCpu], vm: usize) -> Vec<usize> {
    let mut own: Vec<&PlannedCpu> = cpus.iter().filter(|cpu| cpu.vm == Some(vm)).collect();
    own.sort_by_key(|cpu| cpu.vcpu);
    own.iter().map(|cpu| cpu.cpu).collect()
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
