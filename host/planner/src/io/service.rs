//! The service VM, and the CPU and the CPU time of it and of the service thread.

use std::borrow::Cow;

use bulkhead_abi::plan::{Class, MAX_VCPUS_PER_PCPU, MIN_POLL, PAGE};
use bulkhead_model::board::Board;
use bulkhead_model::describe::{
    Code, ColoursSpec, CpuSpec, CpuTime, CrashSpec, DeviceSpec, Duration, Finding, GicSpec,
    InterruptSpec, Limit, MemorySpec, PayloadSpec, Placed, RESETS, SERVICE_NAME, SharedSpec, Size,
    Span, System, VmSpec,
};

use super::device::{self, COUNTS, disk_places};
use super::disk::Disks;
use crate::{PlannedCpu, bandwidth, share};

/// The program of the service VM if the description names no other, which is built as EL2 itself is.
const PROGRAM: &str = "guest:service";
/// Bytes of RAM for the program, its device tree and its stack.
const ROOM: u64 = 2 << 20;
/// RAM is of whole blocks of stage 2.
const BLOCK: u64 = 2 << 20;
/// Name of the memory with the counters of disks and ports.
pub(crate) const COUNTERS: &str = "counters of disks and networks";
/// How often the service VM starts again at most when it crashes, and in how many seconds.
const CRASH: Limit = Limit {
    most: 10,
    seconds: 60,
};
/// Fair, as VMs are.
const FAIR: CpuTime = CpuTime::Fair {
    weight: 1,
    quota: 100_000_000,
    period: 100_000_000,
};
/// Servers that are tried beside other servers: budget and period in nanoseconds.
const SERVERS: [(u64, u64); 3] = [
    (200_000, 1_000_000),
    (500_000, 5_000_000),
    (500_000, 20_000_000),
];

/// The system with the service VM behind its other VMs, and the memory that outlives it, of disks and of counters, behind its other
/// shared memory. As it is where no VM has a disk or a network.
pub(crate) fn with_service<'a>(system: &'a System, disks: &Disks) -> Cow<'a, System> {
    let Some(place) = system.vms.iter().find_map(VmSpec::first_served) else {
        return Cow::Borrowed(system);
    };
    let place = place.clone();
    let mut all = system.clone();
    let vm = all.vms.len();
    let kept = |name: String, span: &Span, (ipa, size): (u64, u64)| {
        let at = |value| Placed {
            value,
            span: span.clone(),
        };
        SharedSpec {
            name: Placed {
                value: name,
                span: span.clone(),
            },
            size: at(size),
            ipa: at(ipa),
            vms: vec![(
                vm,
                Placed {
                    value: true,
                    span: span.clone(),
                },
            )],
            cacheable: true,
            is_added: true,
        }
    };
    let of_vms = system.vms.iter();
    let specs = of_vms.flat_map(|vm| vm.disks.iter().map(move |disk| (vm, disk)));
    // That of a shared disk is that of the first.
    let own = disks.all.iter().map(|disk| disk.same_as.is_none());
    let places = disk_places(disks).into_iter().zip(own);
    let memory = specs
        .zip(places)
        .filter_map(|(spec, (place, is_own))| Some((spec, place.filter(|_| is_own)?)));
    let memory = memory.map(|((of, disk), place)| {
        let name = format!("disk {} of {}", disk.name.value, of.name.value);
        let size = disk.size.as_ref().map(|size| &size.span);
        kept(name, size.unwrap_or(&disk.span), place)
    });
    all.shared.extend(memory);
    all.shared.push(kept(COUNTERS.to_owned(), &place, COUNTS));
    let windows: u64 = device::all(system, disks, &mut Vec::new())
        .iter()
        .map(|device| device.window_size)
        .sum();
    let windows = windows + disks.ram_bytes();
    let enough = least(windows);
    let size = system.io.memory.clone().unwrap_or(Placed {
        value: enough,
        span: place.clone(),
    });
    let image = system.io.image.clone().unwrap_or(Placed {
        value: PROGRAM.to_owned(),
        span: place.clone(),
    });
    let mut service = vm_spec(place, size, image);
    service.colours = system.io.colours.clone();
    all.vms.push(service);
    Cow::Owned(all)
}

/// RAM that the service VM needs with windows and images of so many bytes.
fn least(windows: u64) -> u64 {
    (ROOM + windows + PAGE).next_multiple_of(BLOCK)
}

/// Whether the RAM that the description gives the service VM is enough.
pub(super) fn fits(system: &System, windows: u64, findings: &mut Vec<Finding>) -> bool {
    let (Some(size), least) = (&system.io.memory, least(windows)) else {
        return true;
    };
    if size.value < least {
        findings.push(
            Finding::new(
                Code::MemorySmall,
                format!("the memory of `{SERVICE_NAME}` is too small for what it serves"),
            )
            .at(size.span.clone(), format!("{} here", Size(size.value)))
            .help(format!(
                "give it {} at least, or leave `memory` out",
                Size(least)
            )),
        );
    }
    size.value >= least
}

/// The service VM, as if it were described.
fn vm_spec(place: Span, size: Placed<u64>, image: Placed<String>) -> VmSpec {
    let at = |text: &str| Placed {
        value: text.to_owned(),
        span: place.clone(),
    };
    VmSpec {
        name: at(SERVICE_NAME),
        class: Class::General,
        deviations: Vec::new(),
        vcpus: 1,
        pcpus: Vec::new(),
        cpu: CpuSpec {
            time: FAIR,
            stated: None,
            budget: None,
            pool: Vec::new(),
        },
        interrupts: InterruptSpec::vgic(),
        memory: MemorySpec {
            size,
            ipa: None,
            pa: None,
        },
        payload: PayloadSpec::Program {
            image,
            load: None,
            entry: None,
            initrd: Vec::new(),
        },
        tree: None,
        cmdline: None,
        console: Some(DeviceSpec::default()),
        virtio_console: None,
        gic: GicSpec::default(),
        rtc: None,
        watchdog: None,
        crash: CrashSpec::Restart(CRASH),
        resets: Some(RESETS),
        own_ptimer: None,
        time_stops: false,
        debug: None,
        pmu: None,
        calls: Vec::new(),
        overlays: Vec::new(),
        disks: Vec::new(),
        ports: Vec::new(),
        stated_poll: None,
        devices: Vec::new(),
        board_reset: None,
        deterministic: false,
        manages: Vec::new(),
        manages_place: None,
        waits: None,
        locked: None,
        stop: None,
        bandwidth: None,
        colours: ColoursSpec::default(),
    }
}

/// Whether VMs have virtio devices.
pub(crate) fn is_needed(system: &System) -> bool {
    system.vms.iter().any(|vm| vm.first_virtio().is_some())
}

/// Index of the service VM in a system of [`with_service`]: the last, if VMs have disks or networks.
pub(crate) fn index(system: &System) -> Option<usize> {
    let served = system.vms.iter().any(|vm| vm.first_served().is_some());
    served.then(|| system.vms.len() - 1)
}

/// RAM of the service VM.
pub(super) fn ram(system: &System, vm: usize) -> (u64, u64) {
    (MemorySpec::USUAL, system.vms[vm].memory.size.value)
}

/// CPU of the service thread and of the service VM, and their CPU time.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    /// Number on the board.
    pub cpu: usize,
    /// CPU time of the thread.
    pub thread: CpuTime,
    /// CPU time of the service VM's vCPU, if there is one.
    pub vm: CpuTime,
    /// Reason for that of the thread.
    pub why: String,
}

/// Chooses the CPU and the CPU time. `taken` are the vCPUs of each CPU of the board without the service VM, `times` the CPU
/// time of each VM, `console` the CPU that drains the console.
pub(crate) fn choose(
    system: &System,
    board: &Board,
    taken: &[Vec<(usize, usize)>],
    (times, console): (&[CpuTime], Option<usize>),
    findings: &mut Vec<Finding>,
) -> Option<Chosen> {
    let of_vm = usize::from(index(system).is_some());
    let pinned = |&(vm, _): &(usize, usize)| {
        let spec = &system.vms[vm];
        !spec.cpu.shares() || spec.class == Class::HardRealtime
    };
    // Of a VM that is spared the switching because nobody else is there.
    let alone = |(vm, _): &(usize, usize)| times[*vm] == CpuTime::Pinned;
    let may = |cpu: usize| {
        taken.get(cpu).is_some_and(|vcpus| {
            // One for the thread, and one for the VM.
            let room = vcpus.len() + 1 + of_vm <= MAX_VCPUS_PER_PCPU;
            room && !vcpus.iter().any(pinned) && !hard_pool(system, cpu)
        })
    };
    let cpu = match &system.io.pcpu {
        Some(request) => {
            let cpu = request.value as usize;
            if !may(cpu) {
                findings.push(refused(system, board, request, taken));
                return None;
            }
            cpu
        }
        None => {
            let last = (0..taken.len()).rev();
            let all = || console.into_iter().chain(last.clone());
            // Best where nobody loses by it; rather beside a VM that is no longer alone than beside servers.
            let worst = |cpu: usize| {
                let servers = taken[cpu].iter().any(|(vm, _)| is_server(times[*vm]));
                (servers, taken[cpu].iter().any(alone))
            };
            let Some(cpu) = all().filter(|cpu| may(*cpu)).min_by_key(|cpu| worst(*cpu)) else {
                findings.push(no_room(system));
                return None;
            };
            cpu
        }
    };
    let (thread, vm, why) = time(system, board, (cpu, console == Some(cpu)), &taken[cpu]);
    findings.extend(too_many_looks(system, thread));
    Some(Chosen {
        cpu,
        thread,
        vm,
        why,
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

/// CPU time of the thread and of the VM on a CPU with these vCPUs, and the reason for that of the thread. Where there are
/// servers, fair ones may be left with nothing.
fn time(
    system: &System,
    board: &Board,
    (cpu, drains): (usize, bool),
    vcpus: &[(usize, usize)],
) -> (CpuTime, CpuTime, String) {
    let times: Vec<CpuTime> = system.vms.iter().map(|spec| spec.cpu.time).collect();
    let servers = vcpus.iter().any(|(vm, _)| is_server(times[*vm]));
    let stated = system.io.time.as_ref();
    // Those of fair VMs that may move here are on others for now, and are reported by the whole plan.
    let vcpus_have_registers = { vcpus.iter() }.any(|(vm, _)| system.vms[*vm].has_registers());
    let held = |vm: usize| bandwidth::in_row(system.vms[vm].bandwidth.as_ref()).1;
    let holds = |thread: CpuTime, of_vm: CpuTime| {
        let mut times = times.clone();
        let mut vcpus = vcpus.to_vec();
        if let Some(service) = index(system) {
            times[service] = of_vm;
            vcpus.push((service, 0));
        }
        let cpu = PlannedCpu {
            cpu,
            mpidr: board.cpus[cpu].mpidr,
            vcpus,
            thread: Some(thread),
            service: drains,
            call_spi: 0,
            pmu_intid: 0,
            registers: vcpus_have_registers,
        };
        share::usage(&cpu, &times, held).holds()
    };
    let tried = SERVERS.map(|(budget, period)| CpuTime::Server { budget, period });
    let line = stated.map(|stated| {
        let line = system.text.position(stated.span.start).line;
        (stated.value, format!("line {line}"))
    });
    let (thread, why) = match line {
        Some(stated) => stated,
        None if !servers => (FAIR, "no server is on its CPU".to_owned()),
        None => match { tried.into_iter() }
            .find(|server| holds(*server, *server) && looks(system, *server).is_none())
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

/// Time in nanoseconds that a look at a polled device takes in which there is nothing, with the way to the thread and back, rounded up.
const LOOK: u64 = 3_000;

/// How much of each of its periods a service thread with this CPU time looks at polled devices, if that is more than its budget: both in
/// nanoseconds.
fn looks(system: &System, thread: CpuTime) -> Option<(u64, u64)> {
    let CpuTime::Server { budget, period } = thread else {
        return None;
    };
    let polled = system.vms.iter().filter_map(|vm| {
        let devices = (vm.disks.len() + vm.ports.len()) as u64;
        Some((devices, vm.poll()?))
    });
    // One that is out of range was reported.
    let needs = polled.map(|(devices, poll)| devices * LOOK * period.div_ceil(poll.max(MIN_POLL)));
    let needs = needs.sum();
    (needs > budget).then_some((needs, budget))
}

/// The finding that the service thread has less time than looking at polled devices takes.
fn too_many_looks(system: &System, thread: CpuTime) -> Option<Finding> {
    let (needs, budget) = looks(system, thread)?;
    let CpuTime::Server { period, .. } = thread else {
        return None;
    };
    let stated = system.io.time.as_ref()?;
    let polled = |vm: &&VmSpec| vm.poll().is_some() && vm.first_served().is_some();
    let often = { system.vms.iter().filter(polled) }.min_by_key(|vm| vm.poll())?;
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

/// The finding that the service cannot be on the CPU that the description names.
fn refused(
    system: &System,
    board: &Board,
    request: &Placed<u32>,
    taken: &[Vec<(usize, usize)>],
) -> Finding {
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
