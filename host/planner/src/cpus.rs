//! Assignment of CPUs and CPU time to VMs, and choice of the CPU that drains the console.

use bulkhead_abi::plan::{Class, MAX_VCPUS_PER_PCPU};

use bulkhead_model::board::Board;
use bulkhead_model::describe::{Code, CpuTime, Finding, Placed, Span, System, VmSpec};

use super::PlannedCpu;
use super::gppt;
use super::io::{self, Chosen};

/// A vCPU: index of its VM, its number there.
type Owner = (usize, usize);

/// Assignment of vCPUs to CPUs, under construction.
struct Assignment<'a> {
    system: &'a System,
    /// vCPUs of each CPU of the board.
    assignment: Vec<Vec<Owner>>,
    /// CPUs on which service threads run.
    threads: Vec<usize>,
}

/// CPUs and CPU time that the VMs get.
pub(super) struct Assigned {
    /// pCPUs of the plan.
    pub cpus: Vec<PlannedCpu>,
    /// CPU time, by VM.
    pub times: Vec<CpuTime>,
    /// CPU and CPU time of who serves virtio devices, if VMs have some.
    pub io: Option<Chosen>,
}

/// "1 CPU", "4 CPUs".
fn number_of(count: usize) -> String {
    match count {
        1 => "1 CPU".to_owned(),
        _ => format!("{count} CPUs"),
    }
}

/// The finding that the board has no such CPU.
fn unknown(code: Code, request: &Placed<u32>, system: &System, count: usize) -> Finding {
    let board = system.board.as_ref().map(|board| board.cpus_place());
    Finding::new(code, format!("the board has no CPU {}", request.value))
        .at(request.span.clone(), "no such CPU")
        .also(board, format!("{}, counted from 0", number_of(count)))
        .help(match count {
            0 | 1 => "CPU 0 is the only one".to_owned(),
            _ => format!("name one of 0 to {}, or a board with more CPUs", count - 1),
        })
}

impl Assignment<'_> {
    /// CPUs that have no vCPU, and to which the load balancer moves none.
    fn free(&self) -> Vec<usize> {
        let count = self.assignment.len();
        (0..count)
            .filter(|&cpu| self.assignment[cpu].is_empty() && !self.is_pooled(cpu))
            .collect()
    }

    /// Whether the load balancer may move a vCPU to a CPU.
    fn is_pooled(&self, cpu: usize) -> bool {
        let mut pools = self.system.vms.iter().flat_map(|spec| &spec.cpu.pool);
        pools.any(|pooled| pooled.value as usize == cpu)
    }

    /// Gives the vCPUs of a VM the CPUs that it names.
    fn take_named(&mut self, vm: usize, findings: &mut Vec<Finding>) {
        let spec = &self.system.vms[vm];
        for (number, request) in spec.pcpus.iter().enumerate() {
            let late = (vm, number);
            let cpu = request.value as usize;
            let Some(assignment) = self.assignment.get(cpu) else {
                let count = self.assignment.len();
                findings.push(unknown(Code::PcpuUnknown, request, self.system, count));
                continue;
            };
            let pinned = |owner: &&Owner| !self.system.vms[owner.0].cpu.shares();
            let first = assignment
                .iter()
                .find(|first| !spec.cpu.shares() || pinned(first));
            if let Some(first) = first {
                findings.push(self.shared(late, *first));
            } else if assignment.len() == MAX_VCPUS_PER_PCPU {
                findings.push(
                    Finding::new(
                        Code::PcpuFull,
                        format!("a CPU has {MAX_VCPUS_PER_PCPU} vCPUs at most"),
                    )
                    .at(request.span.clone(), format!("one too many for CPU {cpu}"))
                    .also(self.last_other(vm, cpu), "others are there already")
                    .help("name another CPU"),
                );
            } else {
                self.assignment[cpu].push(late);
            }
        }
    }

    /// Place in the description of the last vCPU of another VM on a CPU: its entry in `pcpus`, else the name of its VM.
    fn last_other(&self, vm: usize, cpu: usize) -> Option<Span> {
        let others = self.assignment.get(cpu)?.iter().rev();
        let (other, number) = others.into_iter().find(|(other, _)| *other != vm)?;
        let spec = &self.system.vms[*other];
        let named = spec.pcpus.get(*number).map(|request| request.span.clone());
        Some(named.unwrap_or_else(|| spec.name.span.clone()))
    }

    /// Gives the vCPUs of a VM that names none the emptiest CPUs of its pool, or free CPUs.
    fn take_free(&mut self, vm: usize, findings: &mut Vec<Finding>) {
        let spec = &self.system.vms[vm];
        if !spec.cpu.pool.is_empty() {
            for number in 0..spec.vcpus {
                let pool = spec.cpu.pool.iter().map(|cpu| cpu.value as usize);
                let best = pool
                    .filter(|&cpu| {
                        self.assignment
                            .get(cpu)
                            .is_some_and(|assignment| assignment.len() < MAX_VCPUS_PER_PCPU)
                    })
                    .min_by_key(|&cpu| self.assignment[cpu].len());
                // None: a CPU of the pool does not exist, or is full, and that was reported.
                if let Some(cpu) = best {
                    self.assignment[cpu].push((vm, number));
                }
            }
            return;
        }
        let free = self.free();
        if free.len() < spec.vcpus {
            findings.push(self.too_few(spec, free.len()));
            // It takes none: that the next VM finds none either would only follow from this.
            return;
        }
        for (number, cpu) in free.into_iter().take(spec.vcpus).enumerate() {
            self.assignment[cpu].push((vm, number));
        }
    }

    /// The finding that no CPU is left for a VM.
    fn too_few(&self, spec: &VmSpec, left: usize) -> Finding {
        let name = &spec.name.value;
        let message = match (left, spec.vcpus) {
            (0, 1) => format!("there is no CPU left for `{name}`"),
            (0, many) => format!("there are no CPUs left for the {many} vCPUs of `{name}`"),
            (1, many) => format!("there is only 1 CPU left for the {many} vCPUs of `{name}`"),
            (left, many) => {
                format!("there are only {left} CPUs left for the {many} vCPUs of `{name}`")
            }
        };
        let vcpus: usize = self.system.vms.iter().map(|spec| spec.vcpus).sum();
        let all = number_of(self.assignment.len());
        let help = if spec.cpu.shares() {
            "give the board more with `cpus`, or name CPUs with `pcpus`: VMs that are not pinned can share them"
        } else {
            "this VM needs CPUs for itself; give the board more with `cpus`"
        };
        Finding::new(Code::PcpuTooFew, message)
            .at(
                spec.name.span.clone(),
                format!("{vcpus} vCPUs in all, {all}"),
            )
            .also(
                self.system.board.as_ref().map(|board| board.cpus_place()),
                format!("has {all}"),
            )
            .help(help)
    }

    /// The finding that two vCPUs, one of them pinned, name the same CPU.
    fn shared(&self, late: Owner, first: Owner) -> Finding {
        let vms = &self.system.vms;
        let (other, spec) = (&vms[first.0], &vms[late.0]);
        let request = &spec.pcpus[late.1];
        let names = if late.0 == first.0 {
            format!("two vCPUs of `{}`", spec.name.value)
        } else {
            format!("`{}` and `{}`", other.name.value, spec.name.value)
        };
        let what = format!("{names} want the same CPU");
        let mut finding = Finding::new(Code::PcpuShared, what).at(
            request.span.clone(),
            format!("`{}` wants CPU {}", spec.name.value, request.value),
        );
        if let Some(first) = other.pcpus.get(first.1) {
            let label = format!("`{}` has it already", other.name.value);
            finding = finding.at(first.span.clone(), label);
        }
        let pinned = if spec.cpu.shares() { other } else { spec };
        let name = &pinned.name.value;
        match self.free().first() {
            Some(free) => finding.help(format!(
                "`{name}` is pinned, and so needs it alone; CPU {free} is free, and without `pcpus` the planner chooses one"
            )),
            None => finding.help(format!(
                "`{name}` is pinned, and so needs it alone; with cpu = \"rt\" or \"fair\" it can share"
            )),
        }
    }

    /// Checks that the pool of a VM is of CPUs that may be shared.
    fn check_pool(&self, spec: &VmSpec, findings: &mut Vec<Finding>) {
        for request in &spec.cpu.pool {
            let Some(assignment) = self.assignment.get(request.value as usize) else {
                let count = self.assignment.len();
                findings.push(unknown(Code::PcpuUnknown, request, self.system, count));
                continue;
            };
            let vms = &self.system.vms;
            let Some(owner) = assignment.iter().find(|owner| !vms[owner.0].cpu.shares()) else {
                continue;
            };
            let pinned = &vms[owner.0];
            let place = pinned
                .pcpus
                .get(owner.1)
                .map_or(&pinned.name.span, |request| &request.span);
            findings.push(
                Finding::new(
                    Code::CpuPool,
                    format!(
                        "`{}` cannot be moved to CPU {}",
                        spec.name.value, request.value
                    ),
                )
                .at(request.span.clone(), "in its pool")
                .at(
                    place.clone(),
                    format!("`{}` is pinned there", pinned.name.value),
                )
                .help("leave that CPU out of `pool`"),
            );
        }
    }

    /// Place in the description of another VM's vCPU that shares a CPU with this VM: its entry in `pcpus`, else the name of
    /// its VM.
    fn neighbour(&self, vm: usize) -> Option<Span> {
        let on = |assignment: &&Vec<Owner>| assignment.iter().any(|(owner, _)| *owner == vm);
        let together = self.assignment.iter().filter(on).flatten();
        let (other, number) = together.into_iter().find(|(other, _)| *other != vm)?;
        let spec = &self.system.vms[*other];
        let named = spec.pcpus.get(*number).map(|request| request.span.clone());
        Some(named.unwrap_or_else(|| spec.name.span.clone()))
    }

    /// CPU time of a VM: what it asks for, or CPUs of its own where nobody else can run anyway.
    fn time_of(&self, vm: usize) -> CpuTime {
        let spec = &self.system.vms[vm];
        let alone = |cpu: usize| {
            let others = self.assignment[cpu].len() > 1 || self.threads.contains(&cpu);
            !others && !self.is_pooled(cpu)
        };
        let mut own = (0..self.assignment.len())
            .filter(|&cpu| self.assignment[cpu].iter().any(|owner| owner.0 == vm));
        if spec.cpu.may_be_pinned() && own.all(alone) {
            return CpuTime::Pinned;
        }
        spec.cpu.time
    }
}

impl Assignment<'_> {
    /// Whether a vCPU of a VM with performance monitors, debug registers or a limit of accesses may come to a CPU.
    fn has_registers(&self, cpu: usize) -> bool {
        let vms = self.system.vms.iter().enumerate();
        let mut have = vms.filter(|(_, spec)| spec.has_registers());
        have.any(|(vm, spec)| {
            self.assignment[cpu].iter().any(|(of, _)| *of == vm) || { spec.cpu.pool.iter() }
                .any(|pooled| pooled.value as usize == cpu)
        })
    }

    /// The pCPUs: the first CPU, those that have vCPUs or may get some, and that which the description has drain the console.
    fn cpus(&self, board: &Board) -> Vec<PlannedCpu> {
        let console = self.system.service.as_ref();
        let console = console.map(|console| console.value as usize);
        (0..self.assignment.len())
            .filter(|&cpu| {
                let used = !self.assignment[cpu].is_empty()
                    || self.is_pooled(cpu)
                    || self.threads.contains(&cpu);
                cpu == 0 || used || console == Some(cpu)
            })
            .map(|cpu| PlannedCpu {
                cpu,
                mpidr: board.cpus[cpu].mpidr,
                vcpus: self.assignment[cpu].clone(),
                thread: None,
                service: console == Some(cpu),
                call_spi: 0,
                pmu_intid: 0,
                registers: self.has_registers(cpu),
            })
            .collect()
    }
}

/// Gives each vCPU a CPU: those of VMs that name them first, then the others in their order, and the service VM last. The
/// first CPU boots, so it is always among the pCPUs; other CPUs without work stay off.
pub(super) fn assign(system: &System, board: &Board, findings: &mut Vec<Finding>) -> Assigned {
    let count = board.cpus.len();
    let mut assignment = Assignment {
        system,
        assignment: vec![Vec::new(); count],
        threads: Vec::new(),
    };
    let service_vm = io::service_vm(system);
    let vms = || system.vms.iter().enumerate();
    let others = || vms().filter(|(vm, _)| service_vm != Some(*vm));
    for (vm, _) in others().filter(|(_, spec)| !spec.pcpus.is_empty()) {
        assignment.take_named(vm, findings);
    }
    for (vm, _) in others().filter(|(_, spec)| spec.pcpus.is_empty()) {
        assignment.take_free(vm, findings);
    }
    for spec in &system.vms {
        assignment.check_pool(spec, findings);
    }
    let times = |assignment: &Assignment| -> Vec<CpuTime> {
        vms().map(|(vm, _)| assignment.time_of(vm)).collect()
    };
    let chosen = io::is_needed(system).then_some(()).and_then(|()| {
        let mut cpus = assignment.cpus(board);
        choose_service(system, board, &mut cpus, &mut Vec::new());
        let console = cpus.iter().find(|cpu| cpu.service).map(|cpu| cpu.cpu);
        let known = (&*times(&assignment), console);
        let chosen = io::choose(system, board, &assignment.assignment, known, findings)?;
        if let Some(vm) = service_vm {
            assignment.assignment[chosen.cpu].push((vm, 0));
        }
        let threads = chosen.threads.iter().map(|thread| thread.cpu);
        assignment.threads = threads.collect();
        Some(chosen)
    });
    let mut times = times(&assignment);
    if let (Some(vm), Some(chosen)) = (service_vm, &chosen) {
        times[vm] = chosen.vm.0;
    }
    for (vm, spec) in vms().filter(|(vm, _)| times[*vm] != CpuTime::Pinned) {
        let name = &spec.name.value;
        let (what, span, why, lesser) = if spec.interrupts.is_gppt() {
            let span = spec.interrupts.stated.clone();
            (
                format!("`{name}` cannot be a GPPT VM on a CPU that it shares"),
                span.unwrap_or_else(|| spec.name.span.clone()),
                "they would come while another VM runs",
                "say interrupts = \"vgic\"",
            )
        } else if let Some(own) = &spec.own_ptimer {
            (
                format!("`{name}` cannot have the physical timer of a CPU that it shares"),
                own.clone(),
                "the timer would fire while another VM runs",
                "leave `ptimer` out, and EL2 emulates it",
            )
        } else {
            continue;
        };
        findings.push(
            Finding::new(Code::CpuOwnTimer, what)
                .at(span, why)
                .also(assignment.neighbour(vm), "runs there, too")
                .help(format!(
                    "{lesser}; or say cpu = \"pinned\" and give the VM CPUs of its own"
                )),
        );
    }
    let console = system.service.as_ref();
    if let Some(request) = console.filter(|request| request.value as usize >= count) {
        findings.push(unknown(Code::ConsoleService, request, system, count));
    }
    let mut cpus = assignment.cpus(board);
    for cpu in &mut cpus {
        cpu.thread = chosen.as_ref().and_then(|chosen| chosen.thread_on(cpu.cpu));
    }
    Assigned {
        cpus,
        times,
        io: chosen,
    }
}

/// Numbers of the CPUs of a VM on the board, by vCPU.
pub(super) fn of_vm(cpus: &[PlannedCpu], vm: usize) -> Vec<usize> {
    let mut own: Vec<(usize, usize)> = cpus
        .iter()
        .flat_map(|cpu| cpu.vcpus.iter().map(move |owner| (*owner, cpu.cpu)))
        .filter(|((of, _), _)| *of == vm)
        .map(|((_, number), cpu)| (number, cpu))
        .collect();
    own.sort_unstable();
    own.into_iter().map(|(_, cpu)| cpu).collect()
}

/// Adds the first CPU of the board that is not among the pCPUs; its index there.
fn add_idle(board: &Board, cpus: &mut Vec<PlannedCpu>) -> Option<usize> {
    let is_idle = |number: &usize| cpus.iter().all(|cpu| cpu.cpu != *number);
    let number = (0..board.cpus.len()).find(is_idle)?;
    let index = cpus.iter().filter(|cpu| cpu.cpu < number).count();
    let idle = PlannedCpu {
        cpu: number,
        mpidr: board.cpus.get(number)?.mpidr,
        vcpus: Vec::new(),
        thread: None,
        service: false,
        call_spi: 0,
        pmu_intid: 0,
        registers: false,
    };
    cpus.insert(index, idle);
    Some(index)
}

/// Chooses the CPU that drains the console, if the description does not: that of the management VM,
/// else of the first VM that is not real-time, else one without a VM, for which one of the board that would stay off is
/// added; where there is none, the first; one without servers before all that have some. Not one whose VM keeps EL2's
/// interrupts.
pub(super) fn choose_service(
    system: &System,
    board: &Board,
    cpus: &mut Vec<PlannedCpu>,
    findings: &mut Vec<Finding>,
) {
    let gic = board.gic();
    // Of several the one with most at stake.
    let class = |cpu: &PlannedCpu| {
        let classes = cpu.vcpus.iter().map(|(vm, _)| system.vms[*vm].class);
        classes.max()
    };
    let keeps = |(vm, _): &(usize, usize)| {
        let interrupts = &system.vms[*vm].interrupts;
        let mode = interrupts.gppt(gic);
        mode.is_some_and(|mode| gppt::has_choice(mode, interrupts.reclaim))
    };
    let kept = |cpus: &[PlannedCpu]| {
        let drains = cpus.iter().find(|cpu| cpu.service);
        let vm = drains.and_then(|cpu| cpu.vcpus.iter().find(|vcpu| keeps(vcpu)));
        let service = system.service.as_ref().map(|service| service.span.clone());
        let drainer = drains.map(|cpu| cpu.cpu);
        let others = (0..board.cpus.len()).filter(|cpu| Some(*cpu) != drainer);
        let other = others.rev().find(|&other| {
            let planned = cpus.iter().find(|cpu| cpu.cpu == other);
            !planned.is_some_and(|cpu| cpu.vcpus.iter().any(keeps))
        });
        vm.map(|(vm, _)| gppt::drains(&system.vms[*vm], other).also(service, "drains it there"))
    };
    if !cpus.iter().any(|cpu| cpu.service) {
        let ranks = [
            Some(Class::Management),
            Some(Class::General),
            None,
            Some(Class::SoftRealtime),
        ];
        let serves = |cpu: &PlannedCpu| {
            let mut vms = cpu.vcpus.iter().map(|(vm, _)| &system.vms[*vm]);
            vms.any(|vm| matches!(vm.cpu.time, CpuTime::Server { .. }))
        };
        let fits = |cpu: &PlannedCpu, rank| class(cpu) == rank && !cpu.vcpus.iter().any(keeps);
        let choices = [false, true].into_iter();
        let mut choices = choices.flat_map(|servers| ranks.map(|rank| (servers, rank)));
        let best = choices.find_map(|(servers, rank)| {
            let may = |cpu: &PlannedCpu| serves(cpu) == servers && fits(cpu, rank);
            let best = cpus.iter().position(may);
            best.or_else(|| {
                let idle = rank.is_none() && !servers;
                idle.then(|| add_idle(board, cpus)).flatten()
            })
        });
        if let Some(cpu) = cpus.get_mut(best.unwrap_or(0)) {
            cpu.service = true;
        }
        findings.extend(kept(cpus));
        return;
    }
    findings.extend(kept(cpus));
    let hard = cpus
        .iter()
        .find(|cpu| cpu.service && class(cpu) == Some(Class::HardRealtime));
    if let (Some(cpu), Some(request)) = (hard, &system.service) {
        findings.push(
            Finding::new(
                Code::ConsoleRealtime,
                format!(
                    "the console is drained on CPU {}, which has a hard-realtime VM",
                    cpu.cpu
                ),
            )
            .at(
                request.span.clone(),
                "interrupts of the UART will interrupt that VM",
            )
            .also(
                cpu.vcpus
                    .iter()
                    .map(|(vm, _)| &system.vms[*vm])
                    .find(|spec| spec.class == Class::HardRealtime)
                    .map(|spec| spec.name.span.clone()),
                "runs on that CPU",
            )
            .help("choose another CPU, or leave `service` out"),
        );
    }
}
