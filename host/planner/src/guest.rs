//! A guest by itself: its resources and its device tree.

use bulkhead_abi::control::right;
use bulkhead_abi::plan::PAGE;
use bulkhead_core::gppt::Mode;

use bulkhead_model::board::{Board, PassthroughDevice};
use bulkhead_model::describe::{
    self, CpuTime, CrashSpec, Finding, StopBy, StopSpec, System, VmSpec,
};

use super::contents::Contents;
use super::file::{Content, File};
use super::ipa::Occupied;
use super::overlay::{self, Overlay};
use super::{
    EmulatedDevice, Mapped, PlannedDevice, PlannedDoorbell, PlannedIo, PlannedPayload, PlannedVm,
};
use super::{
    bandwidth, consoles, dax, doorbells, emulated, gppt, ipa, passthrough, root_disk, start,
};
use crate::guest_tree::{BackendEnd, ChannelEnd, DoorbellEnd, GuestTree};
use crate::planned::{GuestGic, PlannedStop, StopWay};

/// SPIs have INTIDs from here on.
const FIRST_SPI: u32 = 32;

/// A guest under way to its plan.
pub(super) struct Guest {
    pub ram: (u64, u64),
    pub entry: u64,
    pub tree: u64,
    pub payloads: Vec<PlannedPayload>,
    pub regions: Vec<Mapped>,
    pub devices: Vec<(PassthroughDevice, Vec<u32>)>,
    pub emulated: Vec<EmulatedDevice>,
    pub event: Option<u32>,
    pub stolen_time: Option<u64>,
    pub stop: Option<PlannedStop>,
    pub gic: GuestGic,
    /// How it takes its interrupts, if it does itself.
    pub gppt: Option<Mode>,
    pub spis: u32,
    pub s2_pages: u32,
    pub absent: bool,
}

impl Guest {
    pub(super) fn into_planned(
        self,
        system: &System,
        spec: &VmSpec,
        (cpus, time, event): (Vec<usize>, CpuTime, Option<&'static str>),
    ) -> PlannedVm {
        PlannedVm {
            name: spec.name.value.clone(),
            class: spec.class,
            deviations: spec.deviations.clone(),
            cpus,
            time,
            time_why: time_why(system, spec, time),
            accesses: bandwidth::accesses(spec.bandwidth.as_ref(), event),
            pool: spec.cpu.pool.iter().map(|cpu| cpu.value as usize).collect(),
            interrupts_why: why(system, spec, spec.interrupts.stated.as_ref()),
            stolen_time: self.stolen_time,
            entry: self.entry,
            tree: self.tree,
            deterministic: spec.deterministic,
            crash: spec.crash.clone(),
            resets: spec.resets,
            gppt: self.gppt,
            reclaim: spec.interrupts.reclaim,
            reclaim_why: why(system, spec, spec.interrupts.reclaim_stated.as_ref()),
            own_ptimer: spec.has_own_ptimer(),
            time_stops: spec.time_stops,
            debug: spec.debug.is_some(),
            pmu: spec.pmu.is_some(),
            calls: spec.calls.clone(),
            gic: self.gic,
            emulated: self.emulated,
            event: self.event,
            spis: self.spis,
            s2_pages: self.s2_pages,
            regions: self.regions,
            payloads: self.payloads,
            devices: self.devices,
            autostart: spec.waits.is_none(),
            locked: spec.locked.is_some(),
            stop: self.stop,
            rights: rights(system, spec),
        }
    }
}

/// The rights of a VM over others, in words.
fn rights(system: &System, spec: &VmSpec) -> Vec<(String, Vec<&'static str>)> {
    let vms = &system.vms;
    let own = vms.iter().position(|vm| vm.name.value == spec.name.value);
    let all = own
        .into_iter()
        .flat_map(|own| (0..vms.len()).map(move |vm| (own, vm)));
    let rights = all.map(|(own, vm)| (vm, describe::rights(vms, own, vm)));
    let granted = rights.filter(|(_, rights)| *rights != 0);
    let words = |rights: u32| {
        let known = right::ALL.iter().filter(|(bit, _)| rights & bit != 0);
        known.map(|(_, word)| *word).collect()
    };
    granted
        .map(|(vm, rights)| (vms[vm].name.value.clone(), words(rights)))
        .collect()
}

/// Lays out the IPA space of a guest.
pub(super) fn arrange(
    (vm, spec): (usize, &VmSpec),
    system: &System,
    (board, cpus, shares): (&Board, &[(u64, &str)], bool),
    (devices, doorbells, mut io): (
        Vec<PassthroughDevice>,
        &mut [PlannedDoorbell],
        Option<&mut PlannedIo>,
    ),
    (contents, overlays): (Contents, &[Overlay]),
    findings: &mut Vec<Finding>,
) -> Option<Guest> {
    let ram = (spec.memory.start(), spec.memory.size.value);
    let version = board.parts.gic_version;
    let emulated = emulated::devices(spec);
    emulated::check(spec, (system, version), &emulated, findings);
    let Intids {
        event,
        devices,
        stop,
        spis,
    } = intids(
        (vm, spec),
        (system, board),
        &emulated,
        (devices, doorbells, io.as_deref_mut()),
        findings,
    );
    let gic = emulated::gic(version, spec);
    let mut regions = ipa::regions((vm, system), (board, &gic), ram, &devices);
    let pmem = system.pmem(vm);
    let things = Occupied {
        regions: &regions,
        pmem: pmem.as_ref(),
        gic: &gic,
        devices: &emulated,
    };
    if !ipa::check_overlaps(spec, system, things, findings) {
        return None;
    }
    let [stolen_time, word] = pages((vm, spec, shares), things, doorbells, io.as_deref_mut());
    let way = stop.map(StopWay::Key).or(word.map(StopWay::Page));
    let stop = spec.stop.as_ref().zip(way).map(|(stop, way)| PlannedStop {
        way,
        timeout: stop.timeout,
    });
    let io = io.as_deref();
    let virtio: Vec<&PlannedDevice> = io.into_iter().flat_map(|io| io.of_vm(vm)).collect();
    for device in &virtio {
        ipa::add_registers(&mut regions, device);
    }
    let backend = io.and_then(|io| Some((io, io.served_by(vm)?)));
    // What the VM itself uses of its RAM.
    let whole = ram;
    let ram = match backend {
        Some((io, _)) => (ram.0, io.windows().saturating_sub(ram.0).min(ram.1)),
        None => ram,
    };
    if let Some(ipa) = stolen_time {
        ipa::add_stolen_time(&mut regions, vm, ipa);
    }
    if let Some(ipa) = word {
        ipa::add_stop_word(&mut regions, vm, ipa);
    }
    let shared = shared_with(vm, system);
    let ends: Vec<_> = doorbells
        .iter()
        .filter_map(|bell| DoorbellEnd::of(bell, vm))
        .collect();
    let channels: Vec<_> = system
        .channels
        .iter()
        .filter_map(|channel| ChannelEnd::of(channel, vm, system, doorbells))
        .collect();
    let names: Vec<&str> = system.vms.iter().map(|vm| vm.name.value.as_str()).collect();
    let mut tree = GuestTree {
        cpus,
        ram,
        gic: &gic,
        emulated: &emulated,
        event,
        pmu: spec.pmu.is_some(),
        stop: stop.as_ref(),
        devices: &devices,
        shared: &shared,
        doorbells: &ends,
        channels: &channels,
        pmem: pmem.as_ref(),
        virtio: &virtio,
        backend: backend.map(|(io, service)| BackendEnd {
            io,
            service,
            vms: &names,
        }),
        arguments: spec.cmdline.as_ref().map_or("", |text| text.value.as_str()),
        initrd: None,
    };
    let dtb = |initrd, findings: &mut Vec<Finding>| {
        tree.initrd = initrd;
        overlay::merge(tree.to_dtb(), &spec.name.value, overlays, findings)
    };
    let images = backend.map_or(&[][..], |(io, _)| io.images.as_slice());
    let absent = matches!(contents, Contents::Absent) || images.iter().any(|image| image.absent);
    if let Contents::Program { program, .. } = &contents {
        gppt::check_mask((spec, board), program, findings);
    }
    let start = start::start((spec, ram), contents, dtb, findings)?;
    let payloads = start
        .payloads
        .into_iter()
        .map(|(what, ipa, bytes)| PlannedPayload {
            what,
            ipa,
            bytes,
            offset: 0,
        });
    let pmem = pmem.iter().map(|pmem| PlannedPayload {
        what: ipa::PMEM,
        ipa: pmem.ipa + PAGE,
        bytes: File::new(dax::block(pmem)).content(),
        offset: 0,
    });
    let images = images.iter().map(|image| PlannedPayload {
        what: "image of disks",
        ipa: image.ipa,
        bytes: Content::clone(&image.content),
        offset: 0,
    });
    Some(Guest {
        ram: whole,
        entry: start.entry,
        tree: start.tree,
        payloads: payloads.chain(pmem).chain(images).collect(),
        regions,
        devices,
        emulated,
        event,
        stolen_time,
        stop,
        gic,
        gppt: spec.interrupts.gppt(board.gic()),
        spis,
        s2_pages: 0,
        absent,
    })
}

/// The INTIDs of a VM.
struct Intids {
    /// By which it is told of crashes of others.
    event: Option<u32>,
    /// Of its passed-through devices.
    devices: Vec<(PassthroughDevice, Vec<u32>)>,
    /// By which it is asked to stop.
    stop: Option<u32>,
    /// SPIs that its interrupt controller has.
    spis: u32,
}

/// Gives a VM its INTIDs, those of doorbells that it hears among them, and says what is wrong with how it takes
/// interrupts.
fn intids(
    (vm, spec): (usize, &VmSpec),
    (system, board): (&System, &Board),
    emulated: &[EmulatedDevice],
    (devices, doorbells, io): (
        Vec<PassthroughDevice>,
        &mut [PlannedDoorbell],
        Option<&mut PlannedIo>,
    ),
    findings: &mut Vec<Finding>,
) -> Intids {
    let gic = board.gic();
    let told = system.vms.iter().find_map(|other| match &other.crash {
        CrashSpec::Notify(told) if told.value == spec.name.value => Some(told.span.clone()),
        _ => None,
    });
    let mut taken: Vec<u32> = emulated.iter().map(|device| device.intid).collect();
    let mut free = (crate::spis::EVENT_INTID..).filter(|intid| !taken.contains(intid));
    let event = told.as_ref().and_then(|_| free.next());
    taken.extend(event);
    let mut passed = devices.iter().flat_map(|device| &device.irqs);
    let clash = passed.find(|irq| taken.contains(&irq.intid));
    let clash = clash.map(|irq| irq.intid);
    let mut others = system.vms.iter().enumerate();
    let other = others.find(|(n, other)| *n != vm && other.interrupts.gppt(gic).is_some());
    let known = gppt::Context {
        gic,
        gic_place: system.board.as_ref().map(|board| board.gic_place()),
        firmware_place: system.board.as_ref().map(|board| board.firmware_place()),
        other: other.map(|(_, other)| &other.name),
        told,
        clash,
    };
    gppt::check(spec, known, findings);
    gppt::check_events((spec, system), board, findings);
    gppt::check_watchdog(spec, gic, findings);
    consoles::check(spec, &devices, findings);
    root_disk::check(spec, findings);
    let mut next = FIRST_SPI + 1;
    let devices: Vec<(PassthroughDevice, Vec<u32>)> = devices
        .into_iter()
        .map(|device| {
            let intids = device
                .irqs
                .iter()
                .map(|irq| passthrough::vintid(irq.intid, &mut taken, &mut next))
                .collect();
            (device, intids)
        })
        .collect();
    doorbells::assign_intids(vm, doorbells, &mut taken);
    if let Some(io) = io {
        io.assign_intids(vm, &mut taken);
    }
    let by_key = |stop: &&StopSpec| stop.by == StopBy::PowerKey;
    let stop = spec.stop.as_ref().filter(by_key).and_then(|_| {
        let mut free = (crate::spis::EVENT_INTID + 1..).filter(|intid| !taken.contains(intid));
        free.next()
    });
    taken.extend(stop);
    let highest = taken.iter().max().copied().unwrap_or(FIRST_SPI);
    Intids {
        event,
        devices,
        stop,
        spis: (highest - FIRST_SPI + 1).next_multiple_of(32),
    }
}

/// Finds pages for stolen time, for the doorbells that a VM rings, for its virtio devices and for the word by which it is asked to stop, which it
/// finds by a call or by its device tree. Returns the IPA of the page of stolen time if the VM `shares` its CPU, and of that of the word if it has one.
fn pages(
    (vm, spec, shares): (usize, &VmSpec, bool),
    things: Occupied,
    doorbells: &mut [PlannedDoorbell],
    io: Option<&mut PlannedIo>,
) -> [Option<u64>; 2] {
    let stolen_time = shares.then(|| ipa::free_page(ipa::STOLEN_TIME, things, &[]));
    let mut pages: Vec<u64> = stolen_time.into_iter().collect();
    for bell in doorbells.iter_mut().filter(|bell| bell.from == vm) {
        bell.ipa = ipa::free_page(bell.ipa, things, &pages);
        pages.push(bell.ipa);
    }
    if let Some(io) = io {
        io.assign_pages(vm, things, &mut pages);
    }
    let by_word = |stop: &&StopSpec| stop.by == StopBy::Word;
    let stop = spec.stop.as_ref().filter(by_word);
    let word = stop.map(|_| ipa::free_page(ipa::STOP_WORD, things, &pages));
    [stolen_time, word]
}

/// The shared memory of a VM: name, IPA, size.
fn shared_with(vm: usize, system: &System) -> Vec<(String, (u64, u64), bool)> {
    system
        .shared
        .iter()
        .filter(|shared| !shared.is_added && shared.vms.iter().any(|(user, _)| *user == vm))
        .map(|shared| {
            (
                shared.name.value.clone(),
                (shared.ipa.value, shared.size.value),
                shared.cacheable,
            )
        })
        .collect()
}

/// Class or line that decides a property of a VM.
fn why(system: &System, spec: &VmSpec, stated: Option<&describe::Span>) -> String {
    match stated {
        Some(span) => format!("line {}", system.text.position(span.start).line),
        None => format!("default of {}", describe::class_name(spec.class)),
    }
}

/// Reason for the CPU time of a VM.
fn time_why(system: &System, spec: &VmSpec, time: CpuTime) -> String {
    let why = why(system, spec, spec.cpu.stated.as_ref());
    if time == CpuTime::Pinned && spec.cpu.shares() {
        format!("{why} is fair; nobody else can run there, so it is spared the switching")
    } else {
        why
    }
}
