//! A plan as JSON.

use bulkhead_abi::plan::{DeviceKind, PCPU_PAGES, VCPU_PAGES, VIRTIO_PAGES, VM_PAGES};
use bulkhead_core::gppt::{Kick, Mode, Reclaim};
use bulkhead_core::sched::bound::Costs;

use serde::Serialize;
use serde_json::{Value, json as value};

use bulkhead_model::describe::{CrashSpec, Deviation, class_name};

use super::caches::{self, Cache};
use super::colours_cost::{self, Cost};
use super::declared::{self, Declared};
use super::document::{Accesses, Again, Crash, Emulated, Gic, Hex, Mapped, Quiet, Range, Time};
use super::virtio::{self, Service};
use super::{access, el2_bytes, memory_map, profile_name, profile_why, shown_colours};
use crate::{
    Planned, PlannedChannel, PlannedCpu, PlannedDoorbell, PlannedStop, PlannedVm, Runs, StopWay,
    costs, usage,
};

/// The plan as JSON.
pub fn json(planned: &Planned) -> Value {
    let board = &planned.board;
    let image = &planned.image;
    value!(Document {
        name: &planned.name,
        provisional: planned.provisional,
        board: Board {
            name: &board.name,
            gic: board.parts.gic_version,
            qemu: board.emulated.as_ref().map(|emulated| Qemu {
                machine: &emulated.machine,
                cpu: &emulated.cpu,
                cpus: emulated.cpus,
                memory_mib: emulated.memory_mib,
                uarts: emulated.uarts,
            }),
            memory: board
                .memory
                .iter()
                .map(|range| Range {
                    pa: Hex(range.base),
                    size: range.size,
                })
                .collect(),
            cpus: board.cpus.iter().map(|cpu| Hex(cpu.mpidr)).collect(),
        },
        cpus: planned
            .cpus
            .iter()
            .map(|cpu| Cpu::of(planned, cpu))
            .collect(),
        vms: (0..planned.vms.len())
            .map(|vm| Vm::of(planned, vm))
            .collect(),
        service: Service::of(planned),
        doorbells: planned
            .doorbells
            .iter()
            .map(|bell| Doorbell::of(planned, bell))
            .collect(),
        channels: planned
            .channels
            .iter()
            .map(|channel| Channel::of(planned, channel))
            .collect(),
        memory: memory_map(planned)
            .into_iter()
            .map(|owned| Owned {
                pa: Hex(owned.start),
                size: owned.size,
                owners: owned
                    .owners
                    .iter()
                    .map(|vm| &*planned.vms[*vm].name)
                    .collect(),
                what: owned.what,
            })
            .collect(),
        image: Image {
            base: Hex(image.base),
            size: image.size,
            plan_offset: image.plan_offset,
            plan_size: planned.bytes.len(),
            page_pool_offset: image.page_pool_offset,
            profile: profile_name(planned),
            profile_why: profile_why(planned),
            page_pool_pages: image.page_pool_pages,
            colours: shown_colours(image.colours),
            el2_bytes: el2_bytes(planned),
            page_pool: PagePool {
                cpu_pages: PCPU_PAGES,
                vcpu_pages: VCPU_PAGES,
                vm_pages: VM_PAGES,
                virtio_pages: VIRTIO_PAGES,
            },
        },
    })
}

#[derive(Serialize)]
struct Document<'a> {
    name: &'a str,
    provisional: bool,
    board: Board<'a>,
    cpus: Vec<Cpu<'a>>,
    vms: Vec<Vm<'a>>,
    service: Option<Service<'a>>,
    doorbells: Vec<Doorbell<'a>>,
    channels: Vec<Channel<'a>>,
    memory: Vec<Owned<'a>>,
    image: Image,
}

#[derive(Serialize)]
struct Board<'a> {
    name: &'a str,
    gic: u32,
    /// If it is an emulated one.
    qemu: Option<Qemu<'a>>,
    memory: Vec<Range>,
    /// MPIDR of each.
    cpus: Vec<Hex>,
}

#[derive(Serialize)]
struct Qemu<'a> {
    machine: &'a str,
    cpu: &'a str,
    cpus: u32,
    memory_mib: u64,
    uarts: u32,
}

/// A range of physical memory.
#[derive(Serialize)]
struct Owned<'a> {
    pa: Hex,
    size: u64,
    owners: Vec<&'a str>,
    what: String,
}

#[derive(Serialize)]
struct Image {
    base: Hex,
    size: u64,
    plan_offset: u64,
    plan_size: usize,
    #[serde(rename = "pool_offset")]
    page_pool_offset: u64,
    profile: &'static str,
    profile_why: &'static str,
    #[serde(rename = "pool_pages")]
    page_pool_pages: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    colours: Option<String>,
    el2_bytes: u64,
    #[serde(rename = "pool")]
    page_pool: PagePool,
}

/// Pages of the page pool for one of each.
#[derive(Serialize)]
struct PagePool {
    cpu_pages: u32,
    vcpu_pages: u32,
    vm_pages: u32,
    virtio_pages: u32,
}

#[derive(Serialize)]
struct Doorbell<'a> {
    name: &'a str,
    from: &'a str,
    to: &'a str,
    ipa: Hex,
    intid: u32,
    physical: bool,
    apart_ns: u64,
    shared: Option<&'a str>,
}

impl<'a> Doorbell<'a> {
    fn of(planned: &'a Planned, bell: &'a PlannedDoorbell) -> Self {
        Self {
            name: &bell.name,
            from: &planned.vms[bell.from].name,
            to: &planned.vms[bell.to].name,
            ipa: Hex(bell.ipa),
            intid: bell.intid,
            physical: bell.spi.is_some(),
            apart_ns: bell.apart,
            shared: bell.shared.as_deref(),
        }
    }
}

#[derive(Serialize)]
struct Channel<'a> {
    name: &'a str,
    message: usize,
    messages: usize,
    cacheable: bool,
    ends: [End<'a>; 2],
}

#[derive(Serialize)]
struct End<'a> {
    vm: &'a str,
    ipa: Hex,
    size: u64,
    hears: bool,
}

impl<'a> Channel<'a> {
    fn of(planned: &'a Planned, channel: &'a PlannedChannel) -> Self {
        Self {
            name: &channel.name,
            message: channel.shape.message(),
            messages: channel.shape.messages(),
            cacheable: channel.cacheable,
            ends: channel.ends.map(|end| End {
                vm: &planned.vms[end.vm].name,
                ipa: Hex(end.memory.0),
                size: end.memory.1,
                hears: end.hears,
            }),
        }
    }
}

#[derive(Serialize)]
struct Cpu<'a> {
    cpu: usize,
    mpidr: Hex,
    vcpus: Vec<Vcpu<'a>>,
    service: bool,
    /// Whether the service thread runs there.
    thread: bool,
    call_spi: u16,
    usage: Usage<'a>,
    cache: Option<Cache>,
}

impl<'a> Cpu<'a> {
    fn of(planned: &'a Planned, cpu: &PlannedCpu) -> Self {
        let vcpus = cpu.vcpus.iter();
        Self {
            cpu: cpu.cpu,
            mpidr: Hex(cpu.mpidr),
            vcpus: vcpus
                .map(|&(vm, number)| Vcpu::of(planned, vm, number))
                .collect(),
            service: cpu.service,
            thread: cpu.thread.is_some(),
            call_spi: cpu.call_spi,
            usage: Usage::of(planned, cpu),
            cache: caches::of_cpu(planned, cpu),
        }
    }
}

#[derive(Serialize)]
struct Vcpu<'a> {
    vm: &'a str,
    vcpu: usize,
}

impl<'a> Vcpu<'a> {
    fn of(planned: &'a Planned, vm: usize, vcpu: usize) -> Self {
        let vm = &planned.vms[vm].name;
        Self { vm, vcpu }
    }

    fn that(planned: &'a Planned, of: Runs) -> Option<Self> {
        match of {
            Runs::Vcpu { vm, vcpu } => Some(Self::of(planned, vm, vcpu)),
            Runs::Thread => None,
        }
    }
}

/// Shares of a CPU that its vCPUs get: nanoseconds, and millionths of the CPU.
#[derive(Serialize)]
struct Usage<'a> {
    servers: Vec<Server<'a>>,
    servers_ppm: u64,
    schedulable: bool,
    switch_ns: u64,
    longest_ns: u64,
    fair: Vec<Share<'a>>,
}

impl<'a> Usage<'a> {
    fn of(planned: &'a Planned, cpu: &PlannedCpu) -> Self {
        let usage = usage(cpu, &planned.times(), |vm| planned.held(vm));
        let servers = usage.servers.iter().map(|server| Server {
            vcpu: Vcpu::that(planned, server.of),
            budget_ns: server.promise.budget,
            period_ns: server.promise.period,
            need_ns: server.bound.need,
            gap_ns: server.bound.gap,
            load_ppm: server.bound.load,
        });
        let fair = usage.shares.iter().map(|share| Share {
            vcpu: Vcpu::that(planned, share.of),
            weight: share.weight,
            least_ppm: share.least,
            cap_ppm: share.cap,
        });
        Self {
            servers: servers.collect(),
            servers_ppm: usage.load,
            schedulable: usage.holds(),
            switch_ns: costs(cpu).switch,
            longest_ns: Costs::OF_BUILD.longest,
            fair: fair.collect(),
        }
    }
}

#[derive(Serialize)]
struct Server<'a> {
    /// None: the service thread's.
    vcpu: Option<Vcpu<'a>>,
    budget_ns: u64,
    period_ns: u64,
    need_ns: u64,
    gap_ns: u64,
    load_ppm: u64,
}

/// Share of a fair vCPU, or of the service thread.
#[derive(Serialize)]
struct Share<'a> {
    /// None: the service thread's.
    vcpu: Option<Vcpu<'a>>,
    weight: u16,
    least_ppm: u64,
    cap_ppm: Option<u64>,
}

#[derive(Serialize)]
struct Vm<'a> {
    name: &'a str,
    class: &'static str,
    deviations: &'a [Deviation],
    cpus: &'a [usize],
    cpu: CpuPolicy<'a>,
    accesses: Option<Accesses>,
    interrupt_mode: InterruptMode<'a>,
    reclaim: Option<&'static str>,
    stolen_time: Option<Hex>,
    entry: Hex,
    device_tree: Hex,
    gic: Gic,
    emulated: Vec<Emulated>,
    ptimer: &'static str,
    time: &'static str,
    crash: Crash<'a>,
    resets: Option<Again>,
    events: Option<u32>,
    smc: Vec<Hex>,
    deterministic: bool,
    spis: u32,
    s2_pages: u32,
    colours: Option<Cost>,
    regions: Vec<Mapped<'a>>,
    #[serde(rename = "loads")]
    payloads: Vec<Payload>,
    interrupts: Vec<Interrupt<'a>>,
    quiets: Vec<Quiet<'a>>,
    /// Devices that do no DMA by the description's word alone.
    declared: Vec<Declared<'a>>,
    virtio: Vec<virtio::Device<'a>>,
    debug: bool,
    pmu: bool,
    autostart: bool,
    locked: bool,
    stop: Option<Stop>,
    manages: Vec<Manages<'a>>,
    /// Whether the planner has added it.
    added: bool,
}

/// How a VM is asked to stop.
#[derive(Serialize)]
struct Stop {
    /// By a key, and else by a word.
    vintid: Option<u32>,
    word: Option<Hex>,
    timeout_ms: u32,
}

impl Stop {
    fn of(stop: &PlannedStop) -> Self {
        Self {
            vintid: match stop.way {
                StopWay::Key(intid) => Some(intid),
                StopWay::Page(_) => None,
            },
            word: stop.word().map(Hex),
            timeout_ms: stop.timeout,
        }
    }
}

/// A VM over which another one has rights.
#[derive(Serialize)]
struct Manages<'a> {
    vm: &'a str,
    rights: &'a [&'static str],
}

/// Share of its CPU that each vCPU of a VM may use, and the reason.
#[derive(Serialize)]
struct CpuPolicy<'a> {
    #[serde(flatten)]
    time: Time<&'a [usize]>,
    why: &'a str,
}

/// Interrupt delivery of a VM, and the reason.
#[derive(Serialize)]
struct InterruptMode<'a> {
    mode: &'static str,
    why: &'a str,
}

/// A payload in the image.
#[derive(Serialize)]
struct Payload {
    what: &'static str,
    ipa: Hex,
    size: usize,
    offset: u64,
}

/// An interrupt of a device that a VM has.
#[derive(Serialize)]
struct Interrupt<'a> {
    device: &'a str,
    vintid: u32,
    pintid: u32,
    edge: bool,
}

impl<'a> Vm<'a> {
    fn of(planned: &'a Planned, index: usize) -> Self {
        let vm = &planned.vms[index];
        let sdei = vm.reclaim == Reclaim::Sdei;
        let chosen = vm
            .gppt
            .filter(|mode| sdei || mode.kick() == Kick::RevokeAndPoke);
        let gic = match vm.gic.version {
            2 => Gic::v2,
            _ => Gic::v3,
        };
        Self {
            name: &vm.name,
            class: class_name(vm.class),
            deviations: &vm.deviations,
            cpus: &vm.cpus,
            cpu: CpuPolicy {
                time: Time::of(vm.time, &vm.pool[..]),
                why: &vm.time_why,
            },
            accesses: vm.accesses.map(|accesses| Accesses {
                most: accesses.most,
                period_ns: accesses.period,
                event: Some(accesses.event),
            }),
            interrupt_mode: InterruptMode {
                mode: vm.gppt.map_or("vgic", Mode::name),
                why: &vm.interrupts_why,
            },
            reclaim: chosen.map(|_| match vm.reclaim {
                Reclaim::Guaranteed => "guaranteed",
                Reclaim::Cooperative => "cooperative",
                Reclaim::Sdei => "sdei",
            }),
            stolen_time: vm.stolen_time.map(Hex),
            entry: Hex(vm.entry),
            device_tree: Hex(vm.tree),
            gic: gic(vm.gic.gicd.0, vm.gic.interface.0),
            emulated: emulated(vm),
            ptimer: if vm.own_ptimer { "own" } else { "emulated" },
            time: if vm.time_stops { "stops" } else { "runs" },
            crash: crash(vm),
            resets: vm
                .resets
                .and_then(|limit| Again::of(limit.most, limit.seconds)),
            events: vm.event,
            smc: vm.calls.iter().map(|call| Hex((*call).into())).collect(),
            deterministic: vm.deterministic,
            spis: vm.spis,
            s2_pages: vm.s2_pages,
            colours: colours_cost::cost(vm),
            regions: regions(vm),
            payloads: payloads(vm),
            interrupts: interrupts(vm),
            quiets: quiets(vm),
            declared: declared::of(vm),
            virtio: virtio::devices(planned, index),
            debug: vm.debug,
            pmu: vm.pmu,
            autostart: vm.autostart,
            locked: vm.locked,
            stop: vm.stop.as_ref().map(Stop::of),
            manages: { vm.rights.iter() }
                .map(|(vm, rights)| Manages { vm, rights })
                .collect(),
            added: planned
                .io
                .as_ref()
                .is_some_and(|io| io.served_by(index).is_some()),
        }
    }
}

fn crash(vm: &PlannedVm) -> Crash<'_> {
    match &vm.crash {
        CrashSpec::Halt => Crash::Halt,
        CrashSpec::Restart(limit) => Crash::Restart {
            most: limit.most,
            seconds: limit.seconds,
        },
        CrashSpec::Notify(told) => Crash::Notify {
            vm: told.value.as_str().into(),
        },
    }
}

fn regions(vm: &PlannedVm) -> Vec<Mapped<'_>> {
    let regions = vm.regions.iter().map(|mapped| Mapped {
        what: mapped.what.as_str().into(),
        ipa: Hex(mapped.region.ipa),
        pa: Hex(mapped.region.pa),
        size: mapped.region.size,
        access: access(&mapped.region),
        colours: shown_colours(mapped.region.colours),
    });
    regions.collect()
}

fn payloads(vm: &PlannedVm) -> Vec<Payload> {
    let payloads = vm.payloads.iter().map(|payload| Payload {
        what: payload.what,
        ipa: Hex(payload.ipa),
        size: payload.bytes.len(),
        offset: payload.offset,
    });
    payloads.collect()
}

fn emulated(vm: &PlannedVm) -> Vec<Emulated> {
    let emulated = vm.emulated.iter().map(|device| Emulated {
        kind: Some(match device.kind {
            DeviceKind::Pl011 => "pl011",
            DeviceKind::Pl031 => "pl031",
            DeviceKind::Watchdog => "sbsa-watchdog",
        }),
        ipa: Hex(device.ipa),
        size: device.size,
        vintid: device.intid,
    });
    emulated.collect()
}

fn interrupts(vm: &PlannedVm) -> Vec<Interrupt<'_>> {
    let of_device = vm.devices.iter().flat_map(|(device, intids)| {
        let irqs = device.irqs.iter().zip(intids);
        irqs.map(|(irq, intid)| Interrupt {
            device: &device.path,
            vintid: *intid,
            pintid: irq.intid,
            edge: irq.edge,
        })
    });
    of_device.collect()
}

fn quiets(vm: &PlannedVm) -> Vec<Quiet<'_>> {
    let of_device = vm.devices.iter().flat_map(|(device, _)| {
        let quiets = device.quiets.iter();
        quiets.map(|&(pa, width, value)| Quiet {
            device: Some(&device.path),
            pa: Hex(pa),
            width,
            value,
        })
    });
    of_device.collect()
}
