//! A guest by itself: what lies where in its IPA space.

use bulkhead_abi::plan::{
    ACCESS_EXECUTE, ACCESS_READ, ACCESS_WRITE, IPA_BITS, MAX_SPIS, NONE, PAGE, Region, RegionKind,
};
use bulkhead_core::plan::Span;
use dtoolkit::fdt::Fdt;

use super::payload::{self, Bytes, LinuxImage, Program};
use super::{Effort, Loaded, Mapped, PlannedVm};
use crate::board::{Board, Passed, Tree, Trouble, pass};
use crate::describe::{self, Finding, PayloadSpec, Size, System, VmSpec};
use crate::guest_tree::GuestTree;

/// Guest addresses that every VM has: those of QEMU's `virt`, so that guests run there too.
pub(super) const GICD: u64 = 0x0800_0000;
/// Bytes of the distributor.
const GICD_SIZE: u64 = 0x1_0000;
/// Redistributors.
pub(super) const GICR: u64 = 0x080a_0000;
/// Bytes of the redistributors: one vCPU.
const GICR_SIZE: u64 = 0x2_0000;
/// Console.
pub(super) const UART: u64 = 0x0900_0000;
/// INTID of the console.
pub(super) const UART_INTID: u32 = 33;
/// RAM, if the description does not say.
const RAM: u64 = 0x4000_0000;
/// Blocks of stage 2, and of the kernel's first mapping.
const BLOCK: u64 = 2 << 20;

/// What a guest runs, understood.
pub(super) enum Contents {
    Linux {
        kernel: (LinuxImage, Vec<u8>),
        initrd: Option<Vec<u8>>,
    },
    Program(Program),
    Absent,
}

/// A guest under way to its plan.
pub(super) struct Guest {
    pub ram: (u64, u64),
    pub entry: u64,
    pub tree: u64,
    pub loads: Vec<Loaded>,
    pub regions: Vec<Mapped>,
    pub devices: Vec<(Passed, Vec<u32>)>,
    pub spis: u32,
    pub s2_pages: u32,
    pub absent: bool,
}

impl Guest {
    pub(super) fn into_planned(self, spec: &VmSpec, pcpu: usize, cpu: usize) -> PlannedVm {
        PlannedVm {
            name: spec.name.value.clone(),
            class: spec.class,
            deviations: spec.deviations.clone(),
            cpu,
            pcpu,
            entry: self.entry,
            tree: self.tree,
            deterministic: spec.deterministic,
            console: spec.console,
            spis: self.spis,
            s2_pages: self.s2_pages,
            regions: self.regions,
            loads: self.loads,
            devices: self.devices,
        }
    }
}

/// The devices that a VM asks for, those that can be passed through.
pub(super) fn devices(
    vm: usize,
    system: &System,
    board: &Board,
    findings: &mut Vec<Finding>,
) -> Vec<Passed> {
    let wishes = &system.vms[vm].devices;
    let Some(fdt) = Fdt::new(&board.dtb).ok().filter(|_| !wishes.is_empty()) else {
        return Vec::new();
    };
    let tree = Tree::new(fdt);
    let mut devices = Vec::new();
    for wish in wishes {
        match pass(&tree, &wish.value, &board.console) {
            Ok(device) => devices.push(device),
            Err(refusal) => {
                let finding = Finding::new(
                    "bulkhead::device::refused",
                    format!("`{}` cannot be passed through", wish.value),
                )
                .at(wish.span.clone(), refusal.why);
                findings.push(if refusal.help.is_empty() {
                    finding
                } else {
                    finding.help(refusal.help)
                });
            }
        }
    }
    devices
}

/// No device has two owners.
pub(super) fn devices_twice(system: &System, findings: &mut Vec<Finding>) {
    let wishes: Vec<_> = system
        .vms
        .iter()
        .flat_map(|vm| vm.devices.iter().map(move |wish| (vm, wish)))
        .collect();
    for (index, (vm, wish)) in wishes.iter().enumerate() {
        let first = wishes[..index]
            .iter()
            .find(|(_, other)| other.value == wish.value);
        if let Some((owner, other)) = first {
            findings.push(
                Finding::new(
                    "bulkhead::device::shared",
                    format!("`{}` has two owners", wish.value),
                )
                .at(wish.span.clone(), format!("`{}` wants it", vm.name.value))
                .at(
                    other.span.clone(),
                    format!("`{}` has it already", owner.name.value),
                )
                .help("a device belongs to one VM"),
            );
        }
    }
}

/// Reads what a VM runs; none if that is wrong.
pub(super) fn contents(
    spec: &VmSpec,
    system: &System,
    effort: Effort,
    findings: &mut Vec<Finding>,
) -> Result<Option<Contents>, Trouble> {
    let mut read = |source| match payload::read(source, &system.folder, effort, findings) {
        Ok(Bytes::There(bytes)) => Ok(Some(Some(bytes))),
        Ok(Bytes::Absent) => Ok(Some(None)),
        Err(Trouble::Description) => Ok(None),
        Err(other) => Err(other),
    };
    match &spec.payload {
        PayloadSpec::Linux { kernel, initrd } => {
            let image = read(kernel)?;
            let disk = initrd.as_ref().map(&mut read).transpose()?;
            let (Some(image), false) = (image, matches!(disk, Some(None))) else {
                return Ok(None);
            };
            let disk = disk.flatten();
            let Some(image) = image else {
                return Ok(Some(Contents::Absent));
            };
            let header = match payload::linux(&image) {
                Ok(header) => header,
                Err(why) => {
                    let what = format!("`{}` is no Linux Image", kernel.value);
                    findings.push(
                        Finding::new("bulkhead::image::kernel", what).at(kernel.span.clone(), why),
                    );
                    return Ok(None);
                }
            };
            match (initrd, disk) {
                (Some(source), Some(Some(bytes))) if !payload::is_initrd(&bytes) => {
                    findings.push(
                        Finding::new(
                            "bulkhead::image::initrd",
                            format!("`{}` is no initial RAM disk", source.value),
                        )
                        .at(
                            source.span.clone(),
                            "neither cpio nor a compression that kernels know",
                        ),
                    );
                    Ok(None)
                }
                (Some(_), Some(None)) => Ok(Some(Contents::Absent)),
                (_, disk) => Ok(Some(Contents::Linux {
                    kernel: (header, image),
                    initrd: disk.flatten(),
                })),
            }
        }
        PayloadSpec::Program { image, load, entry } => {
            let Some(bytes) = read(image)? else {
                return Ok(None);
            };
            let Some(bytes) = bytes else {
                return Ok(Some(Contents::Absent));
            };
            let wrong = |span: &describe::Span, why: String, help: &str| {
                Finding::new(
                    "bulkhead::image::program",
                    format!("`{}` cannot be run", image.value),
                )
                .at(span.clone(), why)
                .help(help)
            };
            if payload::is_elf(&bytes) {
                for address in [load, entry].into_iter().flatten() {
                    let why = "an ELF file says that itself".to_owned();
                    findings.push(wrong(&address.span, why, "leave it out"));
                }
                return match payload::elf(&bytes) {
                    Ok(program) => Ok(Some(Contents::Program(program))),
                    Err(why) => {
                        let help =
                            "an EL1 program is a static ELF file for AArch64, or raw with `load`";
                        findings.push(wrong(&image.span, why, help));
                        Ok(None)
                    }
                };
            }
            let Some(load) = load else {
                let why = "it is no ELF file, so where does it go?".to_owned();
                findings.push(wrong(
                    &image.span,
                    why,
                    "add load = \"0x40080000\", for instance",
                ));
                return Ok(None);
            };
            let end = load.value.saturating_add(bytes.len() as u64);
            let start = entry.as_ref().unwrap_or(load);
            if bytes.is_empty() || load.value % 8 != 0 {
                let why = "raw bytes, one at least, go to a multiple of 8".to_owned();
                findings.push(wrong(&load.span, why, "correct `load`"));
                return Ok(None);
            }
            if start.value % 4 != 0 || start.value < load.value || start.value >= end {
                let why = format!("the bytes lie from {:#x} to {end:#x}", load.value);
                findings.push(wrong(
                    &start.span,
                    why,
                    "start at a multiple of 4 inside them",
                ));
                return Ok(None);
            }
            let pieces = vec![(load.value, bytes)];
            Ok(Some(Contents::Program(Program {
                pieces,
                entry: start.value,
                end,
            })))
        }
    }
}

/// Lays out the IPA space of a guest.
pub(super) fn arrange(
    (vm, spec): (usize, &VmSpec),
    system: &System,
    cpu: &str,
    devices: Vec<Passed>,
    contents: Contents,
    findings: &mut Vec<Finding>,
) -> Option<Guest> {
    let ram = (
        spec.memory.ipa.as_ref().map_or(RAM, |ipa| ipa.value),
        spec.memory.size.value,
    );
    let mut next = UART_INTID + 1;
    let mut taken = vec![UART_INTID];
    let devices: Vec<(Passed, Vec<u32>)> = devices
        .into_iter()
        .map(|device| {
            let intids = device
                .irqs
                .iter()
                .map(|irq| vintid(irq.intid, &mut taken, &mut next))
                .collect();
            (device, intids)
        })
        .collect();
    let highest = taken.iter().max().copied().unwrap_or(UART_INTID);
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
    let regions = regions(vm, spec, system, ram, &devices);
    if !apart(spec, system, &regions, findings) {
        return None;
    }
    let mut guest = Guest {
        ram,
        entry: 0,
        tree: 0,
        loads: Vec::new(),
        regions,
        devices,
        spis: (highest - 31).next_multiple_of(32),
        s2_pages: 0,
        absent: false,
    };
    let arguments = spec.cmdline.as_ref().map_or("", |text| text.value.as_str());
    let mut tree = GuestTree {
        cpu,
        ram,
        gicd: GICD,
        gicr: (GICR, GICR_SIZE),
        console: spec.console.then_some((UART, UART_INTID)),
        devices: &guest.devices,
        shared: &shared,
        arguments,
        initrd: None,
    };
    let mut loads = Vec::new();
    let needed = match contents {
        Contents::Linux {
            kernel: (header, image),
            initrd,
        } => {
            let start = ram.0 + header.text_offset;
            guest.entry = start;
            guest.tree = (start + header.memory).next_multiple_of(BLOCK);
            loads.push(("kernel", start, image));
            let disk = guest.tree + BLOCK;
            tree.initrd = initrd
                .as_ref()
                .map(|bytes| (disk, disk + bytes.len() as u64));
            let end = tree.initrd.map_or(disk, |(_, end)| end);
            loads.push(("device tree", guest.tree, tree.to_dtb()));
            loads.extend(initrd.map(|bytes| ("initial RAM disk", disk, bytes)));
            end
        }
        Contents::Program(program) => {
            let dtb = tree.to_dtb();
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
                        "bulkhead::image::place",
                        format!("the program of `{}` is not made for its RAM", spec.name.value),
                    )
                    .at(payload_span(spec), format!("goes to {ipa:#x}; RAM starts at {:#x}", ram.0))
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
            loads.push(("device tree", guest.tree, dtb));
            end
        }
        Contents::Absent => {
            guest.absent = true;
            guest.entry = ram.0;
            guest.tree = (ram.0 + PAGE).next_multiple_of(PAGE);
            loads.push(("nothing yet", ram.0, vec![0; 8]));
            let dtb = tree.to_dtb();
            let end = guest.tree + dtb.len() as u64;
            loads.push(("device tree", guest.tree, dtb));
            end
        }
    };
    let needed = needed.saturating_sub(ram.0);
    if needed > ram.1 {
        let enough = needed.next_multiple_of(1 << 20);
        findings.push(
            Finding::new(
                "bulkhead::memory::small",
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
        .map(|(what, ipa, mut bytes)| {
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            Loaded {
                what,
                ipa,
                bytes,
                offset: 0,
            }
        })
        .collect();
    Some(guest)
}

/// The INTID that a guest sees for the board's `intid`: the same if possible.
fn vintid(intid: u32, taken: &mut Vec<u32>, next: &mut u32) -> u32 {
    let mut chosen = intid;
    if intid >= 32 + MAX_SPIS || taken.contains(&intid) {
        while taken.contains(next) {
            *next += 1;
        }
        chosen = *next;
    }
    taken.push(chosen);
    chosen
}

/// Where the description names what a VM runs.
fn payload_span(spec: &VmSpec) -> describe::Span {
    match &spec.payload {
        PayloadSpec::Linux { kernel, .. } => kernel.span.clone(),
        PayloadSpec::Program { image, .. } => image.span.clone(),
    }
}

/// What stage 2 maps, ascending by IPA; physical addresses of memory come later.
fn regions(
    vm: usize,
    spec: &VmSpec,
    system: &System,
    ram: (u64, u64),
    devices: &[(Passed, Vec<u32>)],
) -> Vec<Mapped> {
    let region = |kind: RegionKind, access, shared, ipa, size| Region {
        vm: vm as u16,
        kind: kind as u16,
        access,
        shared,
        ipa,
        pa: ipa,
        size,
    };
    let both = ACCESS_READ | ACCESS_WRITE;
    let mut regions = vec![Mapped {
        what: "RAM".to_owned(),
        region: region(RegionKind::Ram, both | ACCESS_EXECUTE, NONE, ram.0, ram.1),
    }];
    for (number, shared) in system.shared.iter().enumerate() {
        let user = shared.vms.iter().find(|(user, _)| *user == vm);
        if let Some((_, write)) = user {
            let access = if write.value { both } else { ACCESS_READ };
            let (ipa, size) = (shared.ipa.value, shared.size.value);
            regions.push(Mapped {
                what: shared.name.value.clone(),
                region: region(RegionKind::Shared, access, number as u16, ipa, size),
            });
        }
    }
    for (device, _) in devices {
        for (base, size) in device.pages() {
            regions.push(Mapped {
                what: device.path.clone(),
                region: region(RegionKind::Device, both, NONE, base, size),
            });
        }
    }
    debug_assert!(!spec.name.value.is_empty());
    regions.sort_by_key(|mapped| mapped.region.ipa);
    regions
}

/// Reports what overlaps in the IPA space of a VM, or leaves it.
fn apart(spec: &VmSpec, system: &System, regions: &[Mapped], findings: &mut Vec<Finding>) -> bool {
    let place = |what: &str| match what {
        "RAM" => spec
            .memory
            .ipa
            .as_ref()
            .map_or(spec.memory.size.span.clone(), |ipa| ipa.span.clone()),
        path if path.starts_with('/') => spec
            .devices
            .iter()
            .find(|wish| wish.value == path)
            .map_or(spec.name.span.clone(), |wish| wish.span.clone()),
        name => system
            .shared
            .iter()
            .find(|shared| shared.name.value == name)
            .map_or(spec.name.span.clone(), |shared| shared.ipa.span.clone()),
    };
    let mut things: Vec<(&str, Option<describe::Span>, u64, u64)> = regions
        .iter()
        .map(|mapped| {
            let what = mapped.what.as_str();
            (
                what,
                Some(place(what)),
                mapped.region.ipa,
                mapped.region.size,
            )
        })
        .collect();
    things.push(("the distributor (GICD)", None, GICD, GICD_SIZE));
    things.push(("the redistributor (GICR)", None, GICR, GICR_SIZE));
    if spec.console {
        things.push(("the console (PL011)", None, UART, PAGE));
    }
    let before = findings.len();
    for (index, (what, span, ipa, size)) in things.iter().enumerate() {
        let range = Span::new(*ipa, *size).filter(|range| range.end <= 1 << IPA_BITS);
        let (Some(range), Some(span)) = (range, span) else {
            if let Some(span) = span {
                findings.push(
                    Finding::new(
                        "bulkhead::memory::ipa",
                        format!("{what} of `{}` leaves the IPA space", spec.name.value),
                    )
                    .at(
                        span.clone(),
                        format!("ends behind {:#x}", 1_u64 << IPA_BITS),
                    ),
                );
            }
            continue;
        };
        for (other, other_span, other_ipa, other_size) in &things[index + 1..] {
            let overlap = Span::new(*other_ipa, *other_size).filter(|other| other.overlaps(range));
            let Some(overlap) = overlap else { continue };
            let mut finding = Finding::new(
                "bulkhead::memory::overlap",
                format!(
                    "{what} and {other} overlap in the IPA space of `{}`",
                    spec.name.value
                ),
            )
            .at(
                span.clone(),
                format!("{what}: {:#x} to {:#x}", range.start, range.end),
            );
            let text = format!("{other}: {:#x} to {:#x}", overlap.start, overlap.end);
            finding = match other_span {
                Some(other_span) => finding.at(other_span.clone(), text),
                None => finding.help(format!("{text}, in every VM")),
            };
            findings.push(finding);
        }
    }
    findings.len() == before
}
