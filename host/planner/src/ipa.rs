//! Layout of the IPA space of a guest, and the check that nothing overlaps.

use bulkhead_abi::plan::{
    ACCESS_EXECUTE, ACCESS_READ, ACCESS_UNCACHED, ACCESS_WRITE, ALL_COLOURS, IPA_BITS, NONE, PAGE,
    Region, RegionKind,
};
use bulkhead_core::plan::Span;

use bulkhead_model::board::{Board, PassthroughDevice};
use bulkhead_model::describe::{self, Code, Finding, PmemRegion, System, VmSpec};

use super::{EmulatedDevice, Mapped, PlannedDevice, colours, emulated};
use crate::planned::GuestGic;

/// Page in which a VM is told stolen time, where QEMU's `virt` has it; if that is taken, the next one that is free.
pub(super) const STOLEN_TIME: u64 = 0x090a_0000;
/// Page with the word by which a VM is asked to stop; if that is taken, the next one that is free.
pub(super) const STOP_WORD: u64 = 0x090b_0000;
/// Name of the memory at the start of a pmem region.
pub(super) const PMEM: &str = "pmem region of cached channels";
/// Name of its region.
const STOLEN: &str = "stolen time";
/// Name of the region of a GICv2's CPU interface, the virtual one or the physical one.
const INTERFACE: &str = "CPU interface of the GIC";

/// Regions that stage 2 maps, ascending by IPA; physical addresses of memory come later.
pub(super) fn regions(
    (vm, system): (usize, &System),
    (board, gic): (&Board, &GuestGic),
    ram: (u64, u64),
    devices: &[(PassthroughDevice, Vec<u32>)],
) -> Vec<Mapped> {
    let region = |kind: RegionKind, access, shared, ipa, size| Region {
        vm: vm as u16,
        kind: kind as u16,
        access,
        shared,
        ipa,
        pa: ipa,
        size,
        colours: ALL_COLOURS,
    };
    let both = ACCESS_READ | ACCESS_WRITE;
    let mut regions = vec![Mapped {
        what: "RAM".to_owned(),
        region: Region {
            colours: colours::of_vm(&system.vms[vm], board),
            ..region(RegionKind::Ram, both | ACCESS_EXECUTE, NONE, ram.0, ram.1)
        },
    }];
    if let Some(pmem) = system.pmem(vm) {
        regions.push(Mapped {
            what: PMEM.to_owned(),
            region: Region {
                ipa: pmem.ipa,
                size: PmemRegion::HEAD,
                ..regions[0].region
            },
        });
    }
    for (number, shared) in system.shared.iter().enumerate() {
        let user = shared.vms.iter().find(|(user, _)| *user == vm);
        if let Some((_, write)) = user {
            let access = if write.value { both } else { ACCESS_READ };
            let access = access | if shared.cacheable { 0 } else { ACCESS_UNCACHED };
            let (ipa, size) = (shared.ipa.value, shared.size.value);
            regions.push(Mapped {
                what: shared.name.value.clone(),
                region: Region {
                    colours: colours::of_shared(shared, system, board),
                    ..region(RegionKind::Shared, access, number as u16, ipa, size)
                },
            });
        }
    }
    if gic.version == 2 {
        // Its second page has GICC_DIR alone, which EL2 emulates.
        let mut interface = region(RegionKind::Gicv, both, NONE, gic.interface.0, PAGE);
        let own = system.vms[vm].interrupts.is_gppt();
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

/// Has stage 2 map the page of stolen time as well.
pub(super) fn add_stolen_time(regions: &mut Vec<Mapped>, vm: usize, ipa: u64) {
    add_page(
        regions,
        vm,
        (STOLEN.to_owned(), RegionKind::StolenTime),
        ipa,
    );
}

/// Has stage 2 map the page with the word by which the VM is asked to stop as well.
pub(super) fn add_stop_word(regions: &mut Vec<Mapped>, vm: usize, ipa: u64) {
    let page = ("word of a stop".to_owned(), RegionKind::StopWord);
    add_page(regions, vm, page, ipa);
}

/// Has stage 2 map the registers of a virtio device as well.
pub(super) fn add_registers(regions: &mut Vec<Mapped>, device: &PlannedDevice) {
    let what = format!("registers of {}", device.use_.called());
    let page = (what, RegionKind::VirtioRegisters);
    add_page(regions, device.vm, page, device.ipa);
}

/// Has stage 2 map a page of EL2's page pool, which the VM reads.
fn add_page(regions: &mut Vec<Mapped>, vm: usize, (what, kind): (String, RegionKind), ipa: u64) {
    regions.push(Mapped {
        what,
        region: Region {
            vm: vm as u16,
            kind: kind as u16,
            access: ACCESS_READ,
            shared: NONE,
            ipa,
            // EL2 puts a page of its page pool there.
            pa: 0,
            size: PAGE,
            colours: ALL_COLOURS,
        },
    });
    regions.sort_by_key(|mapped| mapped.region.ipa);
}

/// Whether EL2 offers a region by itself, and the description does not ask for it.
fn of_el2(mapped: &Mapped) -> bool {
    [RegionKind::Gicv as u16, RegionKind::StolenTime as u16].contains(&mapped.region.kind)
}

/// Occupied ranges of the IPA space of a VM: regions, its pmem region, interrupt controller, emulated devices.
#[derive(Clone, Copy)]
pub(super) struct Occupied<'a> {
    pub regions: &'a [Mapped],
    pub pmem: Option<&'a PmemRegion>,
    pub gic: &'a GuestGic,
    pub devices: &'a [EmulatedDevice],
}

impl Occupied<'_> {
    /// What of the pmem region has no memory.
    fn gaps(&self) -> Vec<(u64, u64)> {
        self.pmem.map(PmemRegion::gaps).unwrap_or_default()
    }
}

/// The first page from `from` on at which a VM has nothing. Pages that a guest finds by a call or by its device tree
/// are put there.
pub(super) fn free_page(from: u64, all: Occupied, pages: &[u64]) -> u64 {
    let regions = all
        .regions
        .iter()
        .map(|mapped| (mapped.region.ipa, mapped.region.size));
    let devices = all.devices.iter();
    let devices = devices.map(|device| (device.ipa, device.size));
    let pages = pages.iter().map(|page| (*page, PAGE));
    let taken = regions.chain(devices).chain(pages);
    let taken = taken.chain(all.gaps());
    let taken = taken.chain([all.gic.gicd, all.gic.interface]);
    let taken: Vec<Span> = taken
        .filter_map(|(ipa, size)| Span::new(ipa, size))
        .collect();
    let mut free = from;
    while let Some(span) = Span::new(free, PAGE)
        && let Some(other) = taken.iter().find(|other| other.overlaps(span))
    {
        free = other.end.next_multiple_of(PAGE);
    }
    free
}

/// A range of the IPA space with its name.
struct Thing {
    what: String,
    place: Place,
    ipa: u64,
    size: u64,
}

/// Source of the IPA of a range.
enum Place {
    /// The description gives the IPA, or asks for the thing, at this place.
    Said(describe::Span),
    /// Default; this key would move it.
    Usual(String),
}

impl Place {
    fn span(&self) -> Option<&describe::Span> {
        match self {
            Self::Said(span) => Some(span),
            Self::Usual(_) => None,
        }
    }
}

/// Ranges of the IPA space of a VM, in the order in which overlaps are reported. Regions that EL2 maps and nobody asks
/// for are not among them: the CPU interface is the GIC's, and the page of stolen time makes way.
fn things(spec: &VmSpec, system: &System, all: Occupied) -> Vec<Thing> {
    let (regions, gic, devices) = (all.regions, all.gic, all.devices);
    let channel = |(ipa, _): &(u64, u64)| {
        let mut channels = system.shared.iter();
        let first = channels.find(|shared| shared.ipa.value == *ipa && shared.is_added);
        first.map_or(spec.name.span.clone(), |shared| shared.ipa.span.clone())
    };
    // It is there because of its first channel.
    let pmem = all.pmem.and_then(|pmem| pmem.channels.first());
    let pmem = pmem.map_or(spec.name.span.clone(), channel);
    let place = |what: &str| match what {
        "RAM" => spec
            .memory
            .ipa
            .as_ref()
            .map_or(spec.memory.size.span.clone(), |ipa| ipa.span.clone()),
        path if path.starts_with('/') => spec
            .devices
            .iter()
            .find(|device| device.path.value == path)
            .map_or(spec.name.span.clone(), |device| device.path.span.clone()),
        PMEM => pmem.clone(),
        name => system
            .shared
            .iter()
            .find(|shared| shared.name.value == name)
            .map_or(spec.name.span.clone(), |shared| shared.ipa.span.clone()),
    };
    let regions = regions.iter().filter(|mapped| !of_el2(mapped));
    let regions = regions.map(|mapped| Thing {
        what: mapped.what.clone(),
        place: Place::Said(place(&mapped.what)),
        ipa: mapped.region.ipa,
        size: mapped.region.size,
    });
    let (interface, key, said) = match gic.version {
        2 => ("the CPU interface (GICC)", "gicc", &spec.gic.gicc),
        _ if spec.vcpus == 1 => ("the redistributor (GICR)", "gicr", &spec.gic.gicr),
        _ => ("the redistributors (GICR)", "gicr", &spec.gic.gicr),
    };
    let frames = [
        ("the distributor (GICD)", "gicd", &spec.gic.gicd, gic.gicd),
        (interface, key, said, gic.interface),
    ];
    let frames = frames.map(|(what, key, said, (ipa, size))| Thing {
        what: what.to_owned(),
        place: match said {
            Some(said) => Place::Said(said.span.clone()),
            None => Place::Usual(format!("gic = {{ {key} = .. }}")),
        },
        ipa,
        size,
    });
    let devices = devices.iter().map(|device| {
        let placement = emulated::placement(spec, device.kind);
        let said =
            placement.and_then(|placement| placement.ipa.as_ref().map(|ipa| ipa.span.clone()));
        let said = said.or_else(|| placement?.asked.clone());
        let usual = || Place::Usual(format!("{} = {{ ipa = .. }}", emulated::key(device.kind)));
        Thing {
            what: device.called().to_owned(),
            place: said.map_or_else(usual, Place::Said),
            ipa: device.ipa,
            size: device.size,
        }
    });
    let gaps = all.gaps().into_iter().map(|(ipa, size)| Thing {
        what: format!("the {PMEM}"),
        place: Place::Said(pmem.clone()),
        ipa,
        size,
    });
    regions.chain(frames).chain(devices).chain(gaps).collect()
}

/// Reports ranges that overlap in the IPA space of a VM, or leave it.
pub(super) fn check_overlaps(
    spec: &VmSpec,
    system: &System,
    all: Occupied,
    findings: &mut Vec<Finding>,
) -> bool {
    let things = things(spec, system, all);
    let before = findings.len();
    let mut seen = Vec::new();
    let within =
        |thing: &Thing| Span::new(thing.ipa, thing.size).filter(|it| it.end <= 1 << IPA_BITS);
    for (index, one) in things.iter().enumerate() {
        let Some(range) = within(one) else {
            findings.push(
                Finding::new(
                    Code::MemoryIpa,
                    format!(
                        "{} of `{}` would leave the IPA space",
                        one.what, spec.name.value
                    ),
                )
                .at(
                    one.place.span().unwrap_or(&spec.name.span).clone(),
                    format!("ends behind {:#x}", 1_u64 << IPA_BITS),
                )
                .help("choose a lower address"),
            );
            continue;
        };
        for other in &things[index + 1..] {
            if within(other).is_some_and(|other| other.overlaps(range)) {
                // First comes what the description says.
                let (first, second) = match one.place.span() {
                    Some(_) => (one, other),
                    None => (other, one),
                };
                let finding = overlap(spec, first, second);
                // The two regions of a channel stand at one place of the description.
                let said = first.place.span().zip(second.place.span());
                if said.is_none_or(|places| !seen.contains(&places)) {
                    findings.push(finding);
                }
                seen.extend(said);
            }
        }
    }
    findings.len() == before
}

/// Two things that overlap.
fn overlap(spec: &VmSpec, first: &Thing, second: &Thing) -> Finding {
    let range = |thing: &Thing| {
        let end = thing.ipa.wrapping_add(thing.size);
        format!("{}: {:#x} to {end:#x}", thing.what, thing.ipa)
    };
    let finding = Finding::new(
        Code::MemoryOverlap,
        format!(
            "{} and {} overlap in the IPA space of `{}`",
            first.what, second.what, spec.name.value
        ),
    )
    .at(
        first.place.span().unwrap_or(&spec.name.span).clone(),
        range(first),
    );
    match &second.place {
        Place::Said(span) => finding.at(span.clone(), range(second)).help(
            "`ipa` moves memory and emulated devices, `gic` the GIC; a passed-through device stays where the board has it",
        ),
        Place::Usual(moves) => finding.help(format!("{}; {moves} moves it", range(second))),
    }
}
