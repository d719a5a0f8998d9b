//! Holds what the tables of a running board map against what the plan says, both ways.

use std::collections::HashSet;
use std::fmt;

use bulkhead_abi::plan::{
    ACCESS_EXECUTE, ACCESS_UNCACHED, ACCESS_WRITE, ALL_COLOURS, COLOUR_GROUP, NAME, PCPU_PAGES,
    Region, RegionKind, STOLEN_TIME_PAGE, VCPU_PAGES, VM_PAGES, Vm,
};
use bulkhead_core::plan::Plan;

use crate::Cpu;
use crate::el2_pages::{self, El2Pages};
use crate::walk::{PAGE, Reader, Walk, walk};

/// A range that is mapped in one way, however many descriptors it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Run {
    ipa: u64,
    pa: u64,
    size: u64,
    /// Attributes, as in [`crate::walk::Leaf`].
    usage: u64,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            ipa,
            pa,
            size,
            usage,
        } = *self;
        write!(
            f,
            "IPA {ipa:#x} to PA {pa:#x}, {size:#x} bytes, used as {usage:#x}"
        )
    }
}

/// Returns the attributes of a region, as bits of a stage-2 descriptor (DDI 0487, D8.3.2 "Block and Page descriptors"):
/// MemAttr [5:2], S2AP [7:6], SH [9:8], AF [10], XN [54:53].
fn usage(region: &Region) -> u64 {
    // Normal, write-back inside and outside, inner shareable, or not cacheable; or Device-nGnRE.
    let normal = [
        RegionKind::Ram,
        RegionKind::Shared,
        RegionKind::StolenTime,
        RegionKind::StopWord,
    ]
    .map(|kind| kind as u16)
    .contains(&region.kind);
    let uncached = region.access & ACCESS_UNCACHED != 0;
    let kind = if normal && !uncached {
        0xf << 2 | 3 << 8
    } else if uncached || region.kind == RegionKind::VirtioRegisters as u16 {
        5 << 2
    } else {
        1 << 2
    };
    let access = if region.access & ACCESS_WRITE != 0 {
        3 << 6
    } else {
        1 << 6
    };
    // XN: 0 everybody executes, 2 nobody does.
    let fetch = if region.access & ACCESS_EXECUTE != 0 {
        0
    } else {
        2 << 53
    };
    kind | access | 1 << 10 | fetch
}

/// Merges ranges that follow each other in both address spaces and have the same attributes.
fn merge(all: impl Iterator<Item = Run>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for next in all {
        match runs.last_mut() {
            Some(last)
                if last.ipa + last.size == next.ipa
                    && last.pa + last.size == next.pa
                    && last.usage == next.usage =>
            {
                last.size += next.size;
            }
            _ => runs.push(next),
        }
    }
    runs
}

/// Returns what is wrong with the tables; empty if they are the plan's. `base` is where the image was loaded, `cpus`
/// are those of the board by number. All VMs have run by now.
pub fn judge(plan: &Plan<'_>, base: u64, cpus: &[Cpu], read: &mut Reader<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut walks = Vec::new();
    for (index, vm) in plan.vms.iter().enumerate() {
        match walk_of(plan, index, vm, cpus, read) {
            Ok(walk) => {
                let name = name(vm);
                wrong.extend(
                    content(plan, base, index, &walk)
                        .iter()
                        .map(|why| format!("vm {name}: {why}")),
                );
                walks.push((name, walk));
            }
            Err(why) => wrong.push(format!("vm {}: {why}", name(vm))),
        }
    }
    wrong.extend(tables(plan, base, &walks));
    wrong.extend(reach(plan, base, &walks));
    wrong
}

/// Name of a VM.
pub fn name(vm: &Vm) -> String {
    let bytes: [u8; NAME] = vm.name;
    let text = String::from_utf8_lossy(&bytes);
    text.trim_end_matches('\0').to_owned()
}

/// Walks the tables of a VM from the registers of its pCPUs, which must agree.
fn walk_of(
    plan: &Plan<'_>,
    index: usize,
    vm: &Vm,
    cpus: &[Cpu],
    read: &mut Reader<'_>,
) -> Result<Walk, String> {
    let mut registers = None;
    for (n, vcpu) in plan.vcpus_of(index).iter().enumerate() {
        let mpidr = plan.pcpus[usize::from(vcpu.pcpu)].mpidr;
        // Up to eight CPUs have their number in Aff0, and nothing above.
        let cpu = usize::try_from(mpidr)
            .ok()
            .and_then(|number| cpus.get(number))
            .ok_or_else(|| format!("the board has no CPU {mpidr:#x}"))?;
        // A vCPU that was never switched on has left its pCPU as it was.
        if n != 0 && cpu.vttbr == 0 {
            continue;
        }
        if cpu.vttbr >> 48 != u64::from(vm.vmid) {
            return Err(format!(
                "VTTBR_EL2 of vCPU {n} is {:#x}, its VMID {}",
                cpu.vttbr, vm.vmid
            ));
        }
        if cpu.hcr & 1 == 0 {
            return Err(format!("stage 2 is off on vCPU {n}"));
        }
        let these = (cpu.vtcr, cpu.vttbr);
        if *registers.get_or_insert(these) != these {
            return Err(format!("vCPU {n} has tables of its own"));
        }
    }
    let (vtcr, vttbr) = registers.ok_or("it has no vCPU")?;
    walk(vtcr, vttbr, read)
}

/// Where the bytes of a region are, one place after the other: page by page, as its colours are defined, and not as EL2 finds them.
fn places(region: &Region) -> Vec<(u64, u64)> {
    if region.colours == ALL_COLOURS {
        return vec![(region.pa, region.size)];
    }
    let pages = (region.pa..).step_by(PAGE as usize);
    let own = pages.filter(|pa| region.colours >> (pa / PAGE % 64) & 1 != 0);
    let own = own.take((region.size / PAGE) as usize);
    own.map(|pa| (pa, PAGE)).collect()
}

/// Whether a region has these bytes, which are a page, or larger in one that has all colours.
pub fn has(region: &Region, pa: u64, size: u64) -> bool {
    let each = u64::from(region.colours.count_ones()) * PAGE;
    let end = region.pa + region.size.div_ceil(each) * COLOUR_GROUP;
    match region.colours {
        ALL_COLOURS => region.pa <= pa && pa + size <= region.pa + region.size,
        colours => {
            colours >> (pa / PAGE % 64) & 1 != 0 && size == PAGE && (region.pa..end).contains(&pa)
        }
    }
}

/// Returns what is missing, and what is mapped without being in the plan.
fn content(plan: &Plan<'_>, base: u64, index: usize, walk: &Walk) -> Vec<String> {
    let mut wrong = walk.wrong.clone();
    let expected = plan.regions_of(index).iter().flat_map(|region| {
        let places = match of_pool(plan, base, region) {
            Some(pa) => vec![(pa, region.size)],
            None => places(region),
        };
        let mut ipa = region.ipa;
        let runs = places.into_iter().map(move |(pa, size)| {
            let run = Run {
                ipa,
                pa,
                size,
                usage: usage(region),
            };
            ipa += size;
            run
        });
        runs.collect::<Vec<_>>()
    });
    let expected = merge(expected);
    let found = merge(walk.leaves.iter().map(|leaf| Run {
        ipa: leaf.ipa,
        pa: leaf.pa,
        size: leaf.size,
        usage: leaf.usage,
    }));
    let set = |runs: &[Run]| runs.iter().copied().collect::<HashSet<_>>();
    let (planned, there) = (set(&expected), set(&found));
    let missing = expected.iter().filter(|run| !there.contains(*run));
    wrong.extend(missing.map(|run| format!("not mapped: {run}")));
    let more = found.iter().filter(|run| !planned.contains(*run));
    wrong.extend(more.map(|run| format!("mapped, but not in the plan: {run}")));
    wrong
}

/// Physical address of a page of a VM in the page pool.
fn page_of_vm(plan: &Plan<'_>, base: u64, vm: usize, page: u32) -> u64 {
    let before = plan.pcpus.len() * PCPU_PAGES as usize
        + (plan.vcpus.len() + plan.service_threads().len()) * VCPU_PAGES as usize
        + vm * VM_PAGES as usize;
    let number = before as u64 + u64::from(page);
    base + El2Pages::of(plan).map_or(0, |own| own.thread_page(number))
}

/// Physical address of a region that is a page of the page pool: in which a VM is told its stolen time or that it is to stop, or that has the registers of a
/// virtio device.
fn of_pool(plan: &Plan<'_>, base: u64, region: &Region) -> Option<u64> {
    let told = [RegionKind::StolenTime, RegionKind::StopWord].map(|kind| kind as u16);
    if told.contains(&region.kind) {
        return Some(page_of_vm(plan, base, region.vm.into(), STOLEN_TIME_PAGE));
    }
    let mut devices = plan.virtio_devices().iter();
    let device = devices.position(|row| {
        region.kind == RegionKind::VirtioRegisters as u16
            && (row.vm, row.ipa) == (region.vm, region.ipa)
    })?;
    let registers = El2Pages::of(plan)?.parts.registers;
    Some(base + el2_pages::page(&registers, device as u64))
}

/// Checks that every table lies in the part of the page pool that is for tables, and belongs to one VM.
fn tables(plan: &Plan<'_>, base: u64, walks: &[(String, Walk)]) -> Vec<String> {
    let image = &plan.header.image;
    let first = base + image.page_pool_offset;
    let end = first + u64::from(image.page_pool_pages) * PAGE;
    let parts = El2Pages::of(plan).map(|own| own.parts);
    let of_el2 = |table: u64| {
        let mut parts = parts
            .iter()
            .flat_map(|parts| [parts.threads, parts.virtio, parts.registers, parts.image]);
        parts.any(|part| el2_pages::number(&part, table - base).is_some())
    };
    let mut seen = Vec::new();
    let mut wrong = Vec::new();
    for (vm, (name, walk)) in walks.iter().enumerate() {
        let regions = plan.regions.iter().filter(|row| usize::from(row.vm) == vm);
        let colours = regions
            .filter(|row| row.kind == RegionKind::Ram as u16)
            .fold(0, |all, row| all | row.colours);
        for table in &walk.tables {
            if !(first..end).contains(table) || of_el2(*table) {
                wrong.push(format!(
                    "vm {name}: a table lies at {table:#x}, outside of those for tables at {first:#x} to {end:#x}"
                ));
            }
            // By the definition of a region's colours, not by the code that chose the page.
            if colours >> (table / PAGE % 64) & 1 == 0 {
                wrong.push(format!(
                    "vm {name}: a table lies at {table:#x}, in another colour than its RAM"
                ));
            }
            if seen.contains(table) {
                wrong.push(format!(
                    "vm {name}: the table at {table:#x} is another VM's too"
                ));
            }
        }
        seen.extend(&walk.tables);
    }
    wrong
}

/// What the leaves of a VM map, as ranges from start to end that are apart, in their order.
pub(crate) fn covered(walk: &Walk) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> = { walk.leaves.iter() }
        .map(|leaf| (leaf.pa, leaf.pa + leaf.size))
        .collect();
    all.sort_unstable();
    let mut apart: Vec<(u64, u64)> = Vec::new();
    for (start, end) in all {
        match apart.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => apart.push((start, end)),
        }
    }
    apart
}

/// Whether a range has a byte in one of those that are [`covered`].
pub(crate) fn reaches(covered: &[(u64, u64)], start: u64, size: u64) -> bool {
    let before = covered.partition_point(|range| range.0 < start + size);
    before.checked_sub(1).is_some_and(|n| covered[n].1 > start)
}

/// Checks that nothing of EL2 is mapped, and that what two VMs reach is memory that the plan lets them share.
fn reach(plan: &Plan<'_>, base: u64, walks: &[(String, Walk)]) -> Vec<String> {
    let (board, image) = (&plan.header.board, &plan.header.image);
    let of_el2 = [
        ("the image of EL2", base, image.size),
        ("the distributor", board.gicd, board.gicd_size),
        ("the redistributors", board.gicr, board.gicr_size),
        ("the CPU interface", board.gicc, board.gicc_size),
        ("the virtual interface control", board.gich, board.gich_size),
        ("the UART of the consoles", board.uart, board.uart_size),
    ];
    let meet = |(a, a_size): (u64, u64), (b, b_size): (u64, u64)| a < b + b_size && b < a + a_size;
    let shared = |pa: u64, size: u64| {
        let shares = |region: &Region| {
            let registers = region.kind == RegionKind::Gicv as u16;
            (registers || region.kind == RegionKind::Shared as u16) && has(region, pa, size)
        };
        plan.regions.iter().any(shares)
    };
    let mut wrong = Vec::new();
    let covered: Vec<Vec<(u64, u64)>> = walks.iter().map(|(_, walk)| covered(walk)).collect();
    for (n, (name, walk)) in walks.iter().enumerate() {
        let vm = plan.vms.iter().position(|vm| self::name(vm) == *name);
        let regions = vm.map_or(&[][..], |vm| plan.regions_of(vm));
        let own: HashSet<u64> = { regions.iter() }
            .filter_map(|region| of_pool(plan, base, region))
            .collect();
        for leaf in &walk.leaves {
            let place = (leaf.pa, leaf.size);
            let is_own = leaf.size == PAGE && own.contains(&leaf.pa);
            for (what, start, size) in of_el2 {
                // The pages of EL2 that a VM may read, which `content` has judged.
                if !is_own && size != 0 && meet(place, (start, size)) {
                    wrong.push(format!("vm {name}: IPA {:#x} reaches {what}", leaf.ipa));
                }
            }
            for ((other, _), theirs) in walks.iter().zip(&covered).take(n) {
                if reaches(theirs, leaf.pa, leaf.size) && !shared(leaf.pa, leaf.size) {
                    wrong.push(format!(
                        "vm {name}: IPA {:#x} reaches memory of {other}",
                        leaf.ipa
                    ));
                }
            }
        }
    }
    wrong
}
