//! The CPUs of service threads and of the service VM, and their CPU time.

use bulkhead_abi::plan::{Class, MAX_VCPUS_PER_PCPU, MIN_POLL};
use bulkhead_model::board::Board;
use bulkhead_model::describe::{Code, CpuTime, Duration, Finding, Placed, Span, System, VmSpec};

use super::service::{FAIR, index};
use crate::{PlannedCpu, bandwidth, share};

/// Servers that are tried beside other servers: budget and period in nanoseconds.
const SERVERS: [(u64, u64); 3] = [
    (200_000, 1_000_000),
    (500_000, 5_000_000),
    (500_000, 20_000_000),
];

/// The vCPUs of each CPU of the board: index of the VM, number of the vCPU there.
type Taken = [Vec<(usize, usize)>];

/// A service thread of EL2, which moves the data of virtio devices.
#[derive(Clone, Debug)]
pub struct PlannedThread {
    /// CPU of the board on which it runs.
    pub cpu: usize,
    /// Its CPU time.
    pub time: CpuTime,
    /// Reason for it: a line of the description, or what else runs on its CPU.
    pub why: String,
    /// Pages of the page pool for it.
    pub pages: u32,
}

/// CPUs of service threads and of the service VM, and their CPU time.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    /// Number on the board of that of the service VM, if there is one.
    pub cpu: usize,
    /// CPU time of its vCPU, and the reason.
    pub vm: (CpuTime, String),
    /// The threads: first that on the same CPU, if a device has it.
    pub threads: Vec<PlannedThread>,
    /// Number of the thread that serves the devices of each VM.
    pub of_vms: Vec<usize>,
}

impl Chosen {
    /// CPU time of the thread on a CPU of the board, if one runs there.
    pub fn thread_on(&self, cpu: usize) -> Option<CpuTime> {
        let thread = self.threads.iter().find(|thread| thread.cpu == cpu);
        thread.map(|thread| thread.time)
    }
}

/// Chooses the CPUs and the CPU time. `taken` are the vCPUs of each CPU of the board without the service VM, `times` the CPU
/// time of each VM, `console` the CPU that drains the console.
pub(crate) fn choose(
    system: &System,
    board: &Board,
    taken: &Taken,
    (times, console): (&[CpuTime], Option<usize>),
    findings: &mut Vec<Finding>,
) -> Option<Chosen> {
    let owns = own_cpus(system, taken);
    let refused = findings.len();
    for (spec, cpu) in system.vms.iter().zip(&owns) {
        if let (Some(own), Some(cpu)) = (&spec.own_service, *cpu)
            && !is_free(system, taken, cpu, 1)
        {
            findings.push(refused_beside(system, spec, (cpu, own), taken));
        }
    }
    if findings.len() > refused {
        return None;
    }
    let cpu = common_cpu(system, board, (taken, &owns), (times, console), findings)?;
    let places: Vec<usize> = owns.iter().map(|own| own.unwrap_or(cpu)).collect();
    let served_on = |place: usize| -> Vec<&VmSpec> {
        let vms = system.vms.iter().zip(&places);
        vms.filter(|(vm, own)| **own == place && vm.first_virtio().is_some())
            .map(|(vm, _)| vm)
            .collect()
    };
    let mut chosen = Chosen {
        cpu,
        vm: (FAIR, String::new()),
        threads: Vec::new(),
        of_vms: Vec::new(),
    };
    for place in [cpu].into_iter().chain(places.iter().copied()) {
        if chosen.thread_on(place).is_some() {
            continue;
        }
        let served = served_on(place);
        let added = Added {
            vm: index(system).filter(|_| place == cpu),
            thread: (!served.is_empty()).then_some(&*served),
        };
        let drains = console == Some(place);
        let (time, of_vm, why) = added.time(system, board, (place, drains), &taken[place]);
        if place == cpu {
            chosen.vm = (of_vm, why.clone());
        }
        if added.thread.is_some() {
            findings.extend(too_many_looks(system, &served, time));
            chosen.threads.push(PlannedThread {
                cpu: place,
                time,
                why,
                pages: 0,
            });
        }
    }
    let number = |place: &usize| {
        let mut threads = chosen.threads.iter();
        threads.position(|thread| thread.cpu == *place).unwrap_or(0)
    };
    chosen.of_vms = places.iter().map(number).collect();
    Some(chosen)
}

/// Chooses the CPU of the service VM, and of the thread for VMs that have none on their own CPUs, which are `owns`.
fn common_cpu(
    system: &System,
    board: &Board,
    (taken, owns): (&Taken, &[Option<usize>]),
    (times, console): (&[CpuTime], Option<usize>),
    findings: &mut Vec<Finding>,
) -> Option<usize> {
    // One for the thread, of the VMs that have it there or of all, and one for the VM.
    let more = 1 + usize::from(index(system).is_some());
    if let Some(request) = &system.io.pcpu {
        let cpu = request.value as usize;
        if is_free(system, taken, cpu, more) {
            return Some(cpu);
        }
        findings.push(refused(system, board, request, taken));
        return None;
    }
    // Of a VM that is spared the switching because nobody else is there.
    let alone = |(vm, _): &(usize, usize)| times[*vm] == CpuTime::Pinned;
    // Best where nobody loses by it; rather beside a VM that is no longer alone than beside servers.
    let worst = |cpu: usize| {
        let servers = taken[cpu].iter().any(|(vm, _)| is_server(times[*vm]));
        let spared = !owns.contains(&Some(cpu)) && taken[cpu].iter().any(alone);
        (servers, spared)
    };
    let last = (0..taken.len()).rev();
    let all = console.into_iter().chain(last);
    let best = all
        .filter(|cpu| is_free(system, taken, *cpu, more))
        .min_by_key(|cpu| worst(*cpu));
    if best.is_none() {
        findings.push(no_room(system));
    }
    best
}

/// By VM: the CPU on which its devices are served if that is its own. One without a CPU was reported.
fn own_cpus(system: &System, taken: &Taken) -> Vec<Option<usize>> {
    let of = |vm: usize, spec: &VmSpec| {
        spec.own_service.as_ref()?;
        spec.first_virtio()?;
        taken.iter().position(|vcpus| vcpus.contains(&(vm, 0)))
    };
    let vms = system.vms.iter().enumerate();
    vms.map(|(vm, spec)| of(vm, spec)).collect()
}

/// Whether a CPU has room for so many more, of which one is a service thread: where nobody is pinned and no hard real-time VM is.
fn is_free(system: &System, taken: &Taken, cpu: usize, more: usize) -> bool {
    let pinned = |&(vm, _): &(usize, usize)| {
        let spec = &system.vms[vm];
        !spec.cpu.shares() || spec.class == Class::HardRealtime
    };
    taken.get(cpu).is_some_and(|vcpus| {
        let room = vcpus.len() + more <= MAX_VCPUS_PER_PCPU;
        room && !vcpus.iter().any(pinned) && !hard_pool(system, cpu)
    })
}

/// Whether a vCPU of a hard real-time VM may be moved to a CPU.
fn hard_pool(system: &System, cpu: usize) -> bool {
    let mut hard = system.vms.iter();
    hard.any(|vm| {
        let mut pool = vm.cpu.pool.iter();
        vm.class == Class::HardRealtime && pool.any(|request| request.value as usize == cpu)
    })
}

const fn is_server(time: CpuTime) -> bool {
    matches!(time, CpuTime::Server { .. })
}

/// What the planner adds to a CPU.
struct Added<'a> {
    /// Index of the service VM.
    vm: Option<usize>,
    /// A service thread, for the devices of these VMs.
    thread: Option<&'a [&'a VmSpec]>,
}

impl Added<'_> {
    /// CPU time of the thread and of the VM on a CPU with these vCPUs, and the reason for it. Where there are servers, fair
    /// ones may be left with nothing.
    fn time(
        &self,
        system: &System,
        board: &Board,
        (cpu, drains): (usize, bool),
        vcpus: &[(usize, usize)],
    ) -> (CpuTime, CpuTime, String) {
        let times: Vec<CpuTime> = system.vms.iter().map(|spec| spec.cpu.time).collect();
        let servers = vcpus.iter().any(|(vm, _)| is_server(times[*vm]));
        // Those of fair VMs that may move here are on others for now, and are reported by the whole plan.
        let vcpus_have_registers = { vcpus.iter() }.any(|(vm, _)| system.vms[*vm].has_registers());
        let held = |vm: usize| bandwidth::in_row(system.vms[vm].bandwidth.as_ref()).1;
        let holds = |thread: CpuTime, of_vm: CpuTime| {
            let mut times = times.clone();
            let mut vcpus = vcpus.to_vec();
            if let Some(service) = self.vm {
                times[service] = of_vm;
                vcpus.push((service, 0));
            }
            let cpu = PlannedCpu {
                cpu,
                mpidr: board.cpus[cpu].mpidr,
                vcpus,
                thread: self.thread.map(|_| thread),
                service: drains,
                call_spi: 0,
                pmu_intid: 0,
                registers: vcpus_have_registers,
            };
            share::usage(&cpu, &times, held).holds()
        };
        let served = self.thread.unwrap_or_default();
        let tried = SERVERS.map(|(budget, period)| CpuTime::Server { budget, period });
        let stated = system.io.time.as_ref().filter(|_| self.thread.is_some());
        let line = stated.map(|stated| {
            let line = system.text.position(stated.span.start).line;
            (stated.value, format!("line {line}"))
        });
        let (thread, why) = match line {
            Some(stated) => stated,
            None if !servers => (FAIR, "no server is on its CPU".to_owned()),
            None => match { tried.into_iter() }
                .find(|server| holds(*server, *server) && looks(served, *server).is_none())
            {
                Some(server) => (server, "servers are on its CPU".to_owned()),
                None => (FAIR, "no server fits beside those on its CPU".to_owned()),
            },
        };
        let vm = match thread {
            CpuTime::Server { .. } => tried.into_iter().find(|server| holds(thread, *server)),
            _ => None,
        };
        (thread, vm.unwrap_or(FAIR), why)
    }
}

/// Time in nanoseconds that a look at a polled device takes in which there is nothing, with the way to the thread and back, rounded up.
const LOOK: u64 = 3_000;

/// How much of each of its periods a service thread with this CPU time looks at polled devices of these VMs, if that is more than its budget: both in
/// nanoseconds.
fn looks(served: &[&VmSpec], thread: CpuTime) -> Option<(u64, u64)> {
    let CpuTime::Server { budget, period } = thread else {
        return None;
    };
    let polled = served.iter().filter_map(|vm| {
        let devices = (vm.disks.len() + vm.ports.len()) as u64;
        Some((devices, vm.poll()?))
    });
    // One that is out of range was reported.
    let needs = polled.map(|(devices, poll)| devices * LOOK * period.div_ceil(poll.max(MIN_POLL)));
    let needs = needs.sum();
    (needs > budget).then_some((needs, budget))
}

/// The finding that a service thread has less time than looking at polled devices of these VMs takes.
fn too_many_looks(system: &System, served: &[&VmSpec], thread: CpuTime) -> Option<Finding> {
    let (needs, budget) = looks(served, thread)?;
    let CpuTime::Server { period, .. } = thread else {
        return None;
    };
    let stated = system.io.time.as_ref()?;
    let polled = |vm: &&&VmSpec| vm.poll().is_some() && vm.first_served().is_some();
    let often = { served.iter().filter(polled) }.min_by_key(|vm| vm.poll())?;
    let poll = often.stated_poll.as_ref().map(|poll| &poll.span);
    let needs = Duration(needs);
    let finding = Finding::new(
        Code::ServicePolls,
        "the service thread has no time to look at polled devices so often",
    );
    Some(
        finding
            .at(
                stated.span.clone(),
                format!("{} in each {}", Duration(budget), Duration(period)),
            )
            .at(
                poll.or(often.first_served())?.clone(),
                format!("all looks take up to {needs} of these"),
            )
            .help(format!(
                "a budget well above {needs}, or a longer `poll`: a look takes up to {}",
                Duration(LOOK)
            )),
    )
}

/// The finding that the devices of a VM cannot be served on its own CPU, where nobody is pinned.
fn refused_beside(
    system: &System,
    spec: &VmSpec,
    (cpu, own): (usize, &Span),
    taken: &Taken,
) -> Finding {
    let name = &spec.name.value;
    let here = { taken[cpu].iter() }.map(|(vm, _)| &system.vms[*vm]);
    let hard = { here }.find(|vm| vm.class == Class::HardRealtime);
    let why = match hard {
        Some(_) => "a hard real-time VM runs there",
        None if hard_pool(system, cpu) => "a hard real-time VM may be moved there",
        None => "it has as many vCPUs as a CPU can have",
    };
    Finding::new(
        Code::ServiceOwn,
        format!("the devices of `{name}` cannot be served on its own CPU, {cpu}"),
    )
    .at(own.clone(), why)
    .also(hard.map(|vm| vm.name.span.clone()), "runs there")
    .help(format!(
        "leave `service` out, and another CPU serves them; or let `{name}` start on another one by `pcpus`"
    ))
}

/// The finding that the service cannot be on the CPU that the description names.
fn refused(system: &System, board: &Board, request: &Placed<u32>, taken: &Taken) -> Finding {
    let count = board.cpus.len();
    let what = format!("virtio devices cannot be served on CPU {}", request.value);
    let finding = Finding::new(Code::ServicePcpu, what);
    let Some(vcpus) = taken.get(request.value as usize) else {
        let cpus = system.board.as_ref().map(|board| board.cpus_place());
        return finding
            .at(request.span.clone(), "the board has no such CPU")
            .also(cpus, format!("{count} in all, counted from 0"))
            .help("name another one, or leave `pcpu` out and the planner chooses");
    };
    let here = vcpus.iter().map(|(vm, _)| &system.vms[*vm]);
    let owner = { here }.find(|vm| !vm.cpu.shares() || vm.class == Class::HardRealtime);
    let why = match owner {
        Some(vm) if vm.cpu.shares() => "a hard real-time VM runs there",
        Some(_) => "a VM is pinned there",
        None if hard_pool(system, request.value as usize) => {
            "a hard real-time VM may be moved there"
        }
        None => "it has as many vCPUs as a CPU can have",
    };
    finding
        .at(request.span.clone(), why)
        .also(owner.map(|vm| vm.name.span.clone()), "runs there")
        .help("name a CPU without such a VM, or leave `pcpu` out and the planner chooses")
}

/// The finding that there is no CPU for the service.
fn no_room(system: &System) -> Finding {
    let place = system.vms.iter().find_map(VmSpec::first_virtio);
    Finding::new(
        Code::ServiceRoom,
        "there is no CPU on which virtio devices could be served",
    )
    .at(
        place.cloned().unwrap_or(0..0),
        "takes a CPU that no VM has pinned, and on which no hard real-time VM runs",
    )
    .also(
        system.board.as_ref().map(|board| board.cpus_place()),
        "all of these have one, or are full",
    )
    .help("give the board more `cpus`, or say cpu = \"rt\" or \"fair\" for a VM that is pinned")
}
