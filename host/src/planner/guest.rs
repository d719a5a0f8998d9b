//! A guest by itself: what it gets, and its device tree.

use bulkhead_abi::plan::PAGE;

use super::contents::Contents;
use super::overlay::{self, Overlay};
use super::store::File;
use super::{EmulatedDevice, Loaded, Mapped, PlannedDoorbell, PlannedVm};
use super::{doorbells, emulated, ipa, own, passed};
use crate::board::{Board, Passed};
use crate::describe::{self, Code, CpuTime, CrashSpec, Finding, PayloadSpec, Size, System, VmSpec};
use crate::guest_tree::{DoorbellEnd, GuestGic, GuestTree};

/// Blocks of stage 2, and of the kernel's first mapping.
const BLOCK: u64 = 2 << 20;
/// SPIs have INTIDs from here on.
const FIRST_SPI: u32 = 32;

/// A guest under way to its plan.
pub(super) struct Guest {
    pub ram: (u64, u64),
    pub entry: u64,
    pub tree: u64,
    pub loads: Vec<Loaded>,
    pub regions: Vec<Mapped>,
    pub devices: Vec<(Passed, Vec<u32>)>,
    pub emulated: Vec<EmulatedDevice>,
    pub event: Option<u32>,
    pub stolen_time: Option<u64>,
    pub gic: GuestGic,
    pub spis: u32,
    pub s2_pages: u32,
    pub absent: bool,
}

impl Guest {
    pub(super) fn into_planned(
        self,
        system: &System,
        spec: &VmSpec,
        cpus: Vec<usize>,
        time: CpuTime,
    ) -> PlannedVm {
        PlannedVm {
            name: spec.name.value.clone(),
            class: spec.class,
            deviations: spec.deviations.clone(),
            cpus,
            time,
            time_why: time_why(system, spec, time),
            pool: spec.cpu.pool.iter().map(|cpu| cpu.value as usize).collect(),
            interrupts_why: why(system, spec, spec.interrupts.stated.as_ref()),
            stolen_time: self.stolen_time,
            entry: self.entry,
            tree: self.tree,
            deterministic: spec.deterministic,
            crash: spec.crash.clone(),
            own_interrupts: spec.interrupts.own(self.gic.version),
            reclaim: spec.interrupts.reclaim,
            reclaim_why: why(system, spec, spec.interrupts.reclaim_stated.as_ref()),
            own_ptimer: spec.has_own_ptimer(),
            time_stops: spec.time_stops,
            calls: spec.calls.clone(),
            gic: self.gic,
            emulated: self.emulated,
            event: self.event,
            spis: self.spis,
            s2_pages: self.s2_pages,
            regions: self.regions,
            loads: self.loads,
            devices: self.devices,
        }
    }
}

/// Lays out the IPA space of a guest.
pub(super) fn arrange(
    (vm, spec): (usize, &VmSpec),
    system: &System,
    (board, cpus, shares): (&Board, &[(u64, &str)], bool),
    (devices, doorbells): (Vec<Passed>, &mut [PlannedDoorbell]),
    (contents, overlays): (Contents, &[Overlay]),
    findings: &mut Vec<Finding>,
) -> Option<Guest> {
    let ram = (
        spec.memory.ipa.as_ref().map_or(ipa::RAM, |ipa| ipa.value),
        spec.memory.size.value,
    );
    let version = board.parts.gic_version;
    let emulated = emulated::devices(spec);
    emulated::check(spec, (system, version), &emulated, findings);
    let told = system.vms.iter().find_map(|other| match &other.crash {
        CrashSpec::Notify(told) if told.value == spec.name.value => Some(told.span.clone()),
        _ => None,
    });
    let mut taken: Vec<u32> = emulated.iter().map(|device| device.intid).collect();
    let mut free = (emulated::EVENT_INTID..).filter(|intid| !taken.contains(intid));
    let event = told.as_ref().and_then(|_| free.next());
    taken.extend(event);
    let mut passed = devices.iter().flat_map(|device| &device.irqs);
    let clash = passed.find(|irq| taken.contains(&irq.intid));
    let clash = clash.map(|irq| irq.intid);
    let mut others = system.vms.iter().enumerate();
    let other = others.find(|(n, other)| *n != vm && other.interrupts.own(version).is_some());
    let known = own::Circumstances {
        version,
        firmware: board.emulated.as_ref().is_some_and(|board| board.firmware),
        gic: system.board.as_ref().map(|board| board.gic_place()),
        other: other.map(|(_, other)| &other.name),
        told,
        clash,
    };
    own::check(spec, known, findings);
    // What a board of a device tree alone is started with, nobody says.
    let has_firmware = board.emulated.as_ref().is_none_or(|board| board.firmware);
    let place = system.board.as_ref().map(|board| board.firmware_place());
    own::check_events(spec, (has_firmware, place), findings);
    let mut next = FIRST_SPI + 1;
    let devices: Vec<(Passed, Vec<u32>)> = devices
        .into_iter()
        .map(|device| {
            let intids = device
                .irqs
                .iter()
                .map(|irq| passed::vintid(irq.intid, &mut taken, &mut next))
                .collect();
            (device, intids)
        })
        .collect();
    doorbells::hear(vm, doorbells, &mut taken);
    let highest = taken.iter().max().copied().unwrap_or(FIRST_SPI);
    let shared: Vec<_> = system
        .shared
        .iter()
        .filter(|shared| shared.vms.iter().any(|(user, _)| *user == vm))
        .map(|shared| {
            (
                shared.name.value.clone(),
                shared.ipa.value,
                shared.size.value,
            )
        })
        .collect();
    let gic = emulated::gic(version, spec);
    let mut regions = ipa::regions((vm, system), (board, &gic), ram, &devices);
    if !ipa::apart(spec, system, (&regions, &gic, &emulated), findings) {
        return None;
    }
    let free = |from, pages: &[u64]| ipa::free_page(from, (&regions, &gic, &emulated), pages);
    let stolen_time = shares.then(|| free(ipa::STOLEN_TIME, &[]));
    let mut pages: Vec<u64> = stolen_time.into_iter().collect();
    for bell in doorbells.iter_mut().filter(|bell| bell.from == vm) {
        bell.ipa = free(bell.ipa, &pages);
        pages.push(bell.ipa);
    }
    if let Some(ipa) = stolen_time {
        ipa::add_stolen_time(&mut regions, vm, ipa);
    }
    let mut guest = Guest {
        ram,
        entry: 0,
        tree: 0,
        loads: Vec::new(),
        regions,
        devices,
        emulated,
        event,
        stolen_time,
        gic,
        spis: (highest - FIRST_SPI + 1).next_multiple_of(32),
        s2_pages: 0,
        absent: false,
    };
    let arguments = spec.cmdline.as_ref().map_or("", |text| text.value.as_str());
    let ends: Vec<_> = doorbells
        .iter()
        .filter_map(|bell| DoorbellEnd::of(bell, vm))
        .collect();
    let mut tree = GuestTree {
        cpus,
        ram,
        gic: &guest.gic,
        emulated: &guest.emulated,
        event,
        devices: &guest.devices,
        shared: &shared,
        doorbells: &ends,
        arguments,
        initrd: None,
    };
    let mut merge = |dtb| overlay::merge(dtb, &spec.name.value, overlays, findings);
    let mut loads = Vec::new();
    let needed = match contents {
        Contents::Linux {
            kernel: (header, image),
            initrd,
        } => {
            let start = ram.0 + header.text_offset;
            guest.entry = start;
            guest.tree = (start + header.memory).next_multiple_of(BLOCK);
            loads.push(("kernel", start, image.content()));
            let disk = guest.tree + BLOCK;
            tree.initrd = initrd
                .as_ref()
                .map(|file| (disk, disk + file.bytes().len() as u64));
            let end = tree.initrd.map_or(disk, |(_, end)| end);
            let dtb = File::new(merge(tree.to_dtb()));
            loads.push(("device tree", guest.tree, dtb.content()));
            loads.extend(initrd.map(|file| ("initial RAM disk", disk, file.content())));
            end
        }
        Contents::Program(program) => {
            let dtb = merge(tree.to_dtb());
            let first = program.pieces.first().map_or(ram.0, |(ipa, _)| *ipa);
            let last = ram.0 + ram.1;
            let size = (dtb.len() as u64).next_multiple_of(PAGE);
            // Below the program if there is room, as QEMU does; else at the end of the RAM.
            guest.tree = if ram.0 + size <= first {
                ram.0
            } else {
                last.saturating_sub(size).max(program.end)
            };
            guest.entry = program.entry;
            let outside = program.pieces.iter().find(|(ipa, _)| *ipa < ram.0);
            if let Some((ipa, _)) = outside {
                findings.push(
                    Finding::new(
                        Code::ImagePlace,
                        format!("the program of `{}` is not made for its RAM", spec.name.value),
                    )
                    .at(payload_span(spec), format!("goes to {ipa:#x}"))
                    .at(
                        spec.memory.ipa.as_ref().map_or(spec.memory.size.span.clone(), |ipa| ipa.span.clone()),
                        format!("RAM starts at {:#x}", ram.0),
                    )
                    .help("move the RAM with memory = { size = .., ipa = .. }, or link the program elsewhere"),
                );
                return None;
            }
            let end = program.end.max(guest.tree + size);
            loads.extend(
                program
                    .pieces
                    .into_iter()
                    .map(|(ipa, bytes)| ("program", ipa, bytes)),
            );
            loads.push(("device tree", guest.tree, File::new(dtb).content()));
            end
        }
        Contents::Absent => {
            guest.absent = true;
            guest.entry = ram.0;
            guest.tree = (ram.0 + PAGE).next_multiple_of(PAGE);
            loads.push(("nothing yet", ram.0, File::new(vec![0; 8]).content()));
            let dtb = merge(tree.to_dtb());
            let end = guest.tree + dtb.len() as u64;
            loads.push(("device tree", guest.tree, File::new(dtb).content()));
            end
        }
    };
    let needed = needed.saturating_sub(ram.0);
    if needed > ram.1 {
        let enough = needed.next_multiple_of(1 << 20);
        findings.push(
            Finding::new(
                Code::MemorySmall,
                format!(
                    "the memory of `{}` is too small for what it runs",
                    spec.name.value
                ),
            )
            .at(
                spec.memory.size.span.clone(),
                format!("{} here", Size(ram.1)),
            )
            .at(
                payload_span(spec),
                format!("this and its device tree need {}", Size(enough)),
            )
            .help(format!("give it more than {}", Size(enough))),
        );
        return None;
    }
    guest.loads = loads
        .into_iter()
        .map(|(what, ipa, bytes)| Loaded {
            what,
            ipa,
            bytes,
            offset: 0,
        })
        .collect();
    Some(guest)
}

/// Which class or which line says what a VM gets.
fn why(system: &System, spec: &VmSpec, stated: Option<&describe::Span>) -> String {
    match stated {
        Some(span) => format!("line {}", system.text.position(span.start).line),
        None => format!("default of {}", describe::class_name(spec.class)),
    }
}

/// Why a VM gets the CPU time that it gets.
fn time_why(system: &System, spec: &VmSpec, time: CpuTime) -> String {
    let why = why(system, spec, spec.cpu.stated.as_ref());
    if time == CpuTime::Pinned && spec.cpu.shares() {
        format!("{why} is fair; nobody else can run there, so it is spared the switching")
    } else {
        why
    }
}

/// Where the description names what a VM runs.
fn payload_span(spec: &VmSpec) -> describe::Span {
    match &spec.payload {
        PayloadSpec::Linux { kernel, .. } => kernel.span.clone(),
        PayloadSpec::Program { image, .. } => image.span.clone(),
        PayloadSpec::Unknown => spec.name.span.clone(),
    }
}
