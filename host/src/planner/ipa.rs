//! The IPA space of a guest: what lies where, and that nothing overlaps.

use bulkhead_abi::plan::{
    ACCESS_EXECUTE, ACCESS_READ, ACCESS_WRITE, DeviceKind, IPA_BITS, NONE, PAGE, Region, RegionKind,
};
use bulkhead_core::plan::Span;

use super::{EmulatedDevice, Mapped};
use crate::board::{Board, Passed};
use crate::describe::{self, Finding, System, VmSpec};
use crate::guest_tree::GuestGic;

/// Guest addresses that every VM has: those of QEMU's `virt`, so that guests run there too.
pub(super) const GICD: u64 = 0x0800_0000;
/// Bytes of the distributor.
const GICD_SIZE: u64 = 0x1_0000;
/// Redistributors of a GICv3.
const GICR: u64 = 0x080a_0000;
/// Bytes of the redistributor of a vCPU.
const GICR_SIZE: u64 = 0x2_0000;
/// CPU interface of a GICv2.
const GICC: u64 = 0x0801_0000;
/// Bytes of the CPU interface.
const GICC_SIZE: u64 = 0x2000;
/// RAM, if the description does not say.
pub(super) const RAM: u64 = 0x4000_0000;
/// SPI by which a VM is told of crashes of others.
pub(super) const EVENT_INTID: u32 = 36;
/// Page in which a VM is told stolen time, where QEMU's `virt` has it.
pub(super) const STOLEN_TIME: u64 = 0x090a_0000;
/// What its region is called.
const STOLEN: &str = "stolen time";
/// What the region of a GICv2's CPU interface is called, the virtual one or the physical one.
const INTERFACE: &str = "CPU interface of the GIC";

/// Devices that EL2 emulates. PL011 and PL031 are where QEMU's `virt` has them, which has no watchdog.
const DEVICES: [EmulatedDevice; 3] = [
    EmulatedDevice {
        kind: DeviceKind::Pl011,
        ipa: 0x0900_0000,
        size: PAGE,
        intid: 33,
    },
    EmulatedDevice {
        kind: DeviceKind::Pl031,
        ipa: 0x0901_0000,
        size: PAGE,
        intid: 34,
    },
    EmulatedDevice {
        kind: DeviceKind::Watchdog,
        ipa: 0x0908_0000,
        size: 2 * PAGE,
        intid: 35,
    },
];

/// The devices that EL2 emulates for a VM.
pub(super) fn emulated(spec: &VmSpec) -> Vec<EmulatedDevice> {
    let wanted = [spec.console, spec.rtc, spec.watchdog];
    let devices = DEVICES.into_iter().zip(wanted);
    devices
        .filter(|(_, wanted)| *wanted)
        .map(|(device, _)| device)
        .collect()
}

/// The interrupt controller of a VM with so many vCPUs on a board with this version of the GIC.
pub(super) fn gic(version: u32, vcpus: usize) -> GuestGic {
    let interface = if version == 2 {
        (GICC, GICC_SIZE)
    } else {
        (GICR, vcpus as u64 * GICR_SIZE)
    };
    GuestGic {
        version,
        gicd: (GICD, GICD_SIZE),
        interface,
    }
}

/// What stage 2 maps, ascending by IPA; physical addresses of memory come later.
pub(super) fn regions(
    (vm, system): (usize, &System),
    board: &Board,
    ram: (u64, u64),
    devices: &[(Passed, Vec<u32>)],
    stolen_time: Option<u64>,
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
    if board.parts.gic_version == 2 {
        // Its second page has GICC_DIR alone, which EL2 emulates.
        let mut interface = region(RegionKind::Gicv, both, NONE, GICC, PAGE);
        let own = system.vms[vm].interrupts.is_own();
        interface.pa = if own {
            board.parts.gicc
        } else {
            board.parts.gicv
        };
        regions.push(Mapped {
            what: INTERFACE.to_owned(),
            region: interface,
        });
    }
    if let Some(ipa) = stolen_time {
        let mut page = region(RegionKind::StolenTime, ACCESS_READ, NONE, ipa, PAGE);
        // EL2 puts a page of its own pool there.
        page.pa = 0;
        regions.push(Mapped {
            what: STOLEN.to_owned(),
            region: page,
        });
    }
    for (device, _) in devices {
        for (base, size) in device.pages() {
            regions.push(Mapped {
                what: device.path.clone(),
                region: region(RegionKind::Device, both, NONE, base, size),
            });
        }
    }
    regions.sort_by_key(|mapped| mapped.region.ipa);
    regions
}

/// Whether a region is part of what EL2 offers, and not what the description asks for.
fn of_el2(mapped: &Mapped) -> bool {
    [RegionKind::Gicv as u16, RegionKind::StolenTime as u16].contains(&mapped.region.kind)
}

/// What has a place in the IPA space of a VM: regions, interrupt controller, emulated devices, pages of doorbells by name.
type Things<'a> = (
    &'a [Mapped],
    &'a GuestGic,
    &'a [EmulatedDevice],
    &'a [(&'a str, u64)],
);

/// Reports what overlaps in the IPA space of a VM, or leaves it.
pub(super) fn apart(
    spec: &VmSpec,
    system: &System,
    (regions, gic, emulated, pages): Things,
    findings: &mut Vec<Finding>,
) -> bool {
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
        .filter(|mapped| !of_el2(mapped))
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
    let interface = match gic.version {
        2 => "the CPU interface (GICC)",
        _ if spec.vcpus == 1 => "the redistributor (GICR)",
        _ => "the redistributors (GICR)",
    };
    things.push(("the distributor (GICD)", None, gic.gicd.0, gic.gicd.1));
    things.push((interface, None, gic.interface.0, gic.interface.1));
    for page in regions
        .iter()
        .filter(|mapped| mapped.what == STOLEN && of_el2(mapped))
    {
        let region = &page.region;
        things.push(("the page of stolen time", None, region.ipa, region.size));
    }
    for device in emulated {
        things.push((device.called(), None, device.ipa, device.size));
    }
    let pages: Vec<_> = pages
        .iter()
        .map(|(name, ipa)| {
            let bells = system.doorbells.iter().map(|bell| &bell.name);
            let bell = bells.into_iter().find(|bell| bell.value == *name);
            let place = bell.map(|bell| bell.span.clone());
            (format!("the page of doorbell `{name}`"), place, *ipa)
        })
        .collect();
    things.extend(
        pages
            .iter()
            .map(|(what, place, ipa)| (what.as_str(), place.clone(), *ipa, PAGE)),
    );
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
                    )
                    .help("choose a lower `ipa`"),
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
                Some(other_span) => finding
                    .at(other_span.clone(), text)
                    .help("`ipa` moves memory; a device stays where the board has it"),
                None => finding.help(format!("{text}; its place is fixed, so move {what}")),
            };
            findings.push(finding);
        }
    }
    findings.len() == before
}
