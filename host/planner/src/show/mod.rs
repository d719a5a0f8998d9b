//! A plan for people and programs: text, JSON, a page; and the differences between two.

pub mod bytes;
mod caches;
pub mod colours_cost;
mod declared;
mod diff;
mod document;
mod json;
mod page;
mod text;
mod virtio;

pub use diff::{Change, Differences, compare};
pub use json::json;
pub use page::{Parts, escape, fill, html};
pub use text::text;

use bulkhead_abi::plan::{
    ACCESS_EXECUTE, ACCESS_UNCACHED, ACCESS_WRITE, ALL_COLOURS, MAX_COLOURS, PAGE, Profile, Region,
    RegionKind,
};

use bulkhead_core::colours;
use bulkhead_model::describe::{CrashSpec, Limit, RESETS, colours_text};
use bulkhead_model::plural::count;

use crate::io::COUNTERS;
use crate::ipa::PMEM;
use crate::{Planned, PlannedVm};

/// A range of the board's physical addresses and who has it.
struct Owned {
    start: u64,
    size: u64,
    /// VMs that have it, by index; none for EL2 and firmware.
    owners: Vec<usize>,
    what: String,
}

/// Physical memory by address: image, RAM, shared memory, what firmware keeps.
fn memory_map(planned: &Planned) -> Vec<Owned> {
    let image = &planned.image;
    let mut coloured = Vec::new();
    let mut map = vec![Owned {
        start: image.base,
        size: image.size,
        owners: Vec::new(),
        what: "image: EL2, plan, payloads, pool".to_owned(),
    }];
    for reserved in &planned.board.reserved {
        map.push(Owned {
            start: reserved.base,
            size: reserved.size,
            owners: Vec::new(),
            what: "kept by firmware".to_owned(),
        });
    }
    for (index, vm) in planned.vms.iter().enumerate() {
        for mapped in &vm.regions {
            let region = &mapped.region;
            let memory = [RegionKind::Ram as u16, RegionKind::Shared as u16];
            if !memory.contains(&region.kind) {
                continue;
            }
            let colours = shown_colours(region.colours);
            if colours.is_none()
                && let Some(known) = map.iter_mut().find(|owned| owned.start == region.pa)
            {
                known.owners.push(index);
                continue;
            }
            let what = match mapped.what.as_str() {
                "RAM" => format!("RAM of {}", vm.name),
                PMEM => format!("{PMEM}, {}", vm.name),
                name if name.starts_with("disk ") || name == COUNTERS => name.to_owned(),
                name => format!("shared: {name}"),
            };
            let owned = Owned {
                start: region.pa,
                size: region.size,
                owners: vec![index],
                what,
            };
            match colours.zip(colours::span(region)) {
                Some((colours, span)) => coloured.push(Owned {
                    start: span.start,
                    size: span.end - span.start,
                    what: format!("{} (colours {colours})", owned.what),
                    ..owned
                }),
                None => map.push(owned),
            }
        }
    }
    map.extend(interleaved(coloured));
    map.sort_by_key(|owned| owned.start);
    map
}

/// What lies among pages of others, in one piece with these.
fn interleaved(mut all: Vec<Owned>) -> Vec<Owned> {
    all.sort_by_key(|owned| owned.start);
    let mut pieces: Vec<Owned> = Vec::new();
    for next in all {
        match pieces.last_mut() {
            Some(last) if next.start < last.start + last.size => {
                let end = (next.start + next.size).max(last.start + last.size);
                last.size = end - last.start;
                // Shared memory comes once for each of its VMs.
                if !last.what.contains(&next.what) {
                    last.what = format!("{}, {}", last.what, next.what);
                }
                last.owners.extend(next.owners);
                last.owners.sort_unstable();
                last.owners.dedup();
            }
            _ => pieces.push(next),
        }
    }
    pieces
}

/// Colours as a description has them; none if they are all.
fn shown_colours(colours: u64) -> Option<String> {
    let mut count = MAX_COLOURS;
    while count > 1 && colours.rotate_right(count / 2) == colours {
        count /= 2;
    }
    let mask = ALL_COLOURS >> (MAX_COLOURS - count);
    (colours != ALL_COLOURS).then(|| format!("{} of {count}", colours_text(colours & mask)))
}

/// Access in three letters, and whether nobody caches it.
fn access(region: &Region) -> &'static str {
    match (
        region.access & ACCESS_WRITE != 0,
        region.access & ACCESS_EXECUTE != 0,
        region.access & ACCESS_UNCACHED != 0,
    ) {
        (true, true, _) => "rwx",
        (true, false, false) => "rw-",
        (true, false, true) => "rw- uncached",
        (false, true, _) => "r-x",
        (false, false, false) => "r--",
        (false, false, true) => "r-- uncached",
    }
}

/// The profile of a plan's EL2.
fn profile(planned: &Planned) -> Profile {
    let all = Profile::ALL.into_iter();
    { all }
        .find(|profile| *profile as u32 == planned.image.profile)
        .unwrap_or(Profile::Shared)
}

/// The name of the profile of a plan's EL2.
fn profile_name(planned: &Planned) -> &'static str {
    profile(planned).name()
}

/// The reason for the profile of a plan's EL2.
fn profile_why(planned: &Planned) -> &'static str {
    crate::profile::why(profile(planned), planned.vms.iter().map(|vm| vm.time))
}

/// Bytes that EL2 takes besides payloads: itself with the plan, and the page pool.
fn el2_bytes(planned: &Planned) -> u64 {
    let own = (planned.image.plan_offset + planned.bytes.len() as u64).next_multiple_of(PAGE);
    own + u64::from(planned.image.page_pool_pages) * PAGE
}

/// "CPU 1", "CPUs 1 and 2", "CPUs 1, 2 and 3".
fn cpus(vm: &PlannedVm) -> String {
    // Several vCPUs may have the same one.
    let mut numbers = Vec::new();
    for cpu in &vm.cpus {
        if !numbers.contains(cpu) {
            numbers.push(*cpu);
        }
    }
    let names: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    match names.split_last() {
        Some((last, [])) => format!("CPU {last}"),
        Some((last, before)) => format!("CPUs {} and {last}", before.join(", ")),
        None => "no CPU".to_owned(),
    }
}

/// Names in a sentence.
fn listed(names: Vec<String>) -> String {
    match names.split_last() {
        None => "nobody".to_owned(),
        Some((last, [])) => last.clone(),
        Some((last, before)) => format!("{} and {last}", before.join(", ")),
    }
}

/// Name of a vCPU: that of its VM, if it is the only one there.
fn vcpu_name(planned: &Planned, vm: usize, number: usize) -> String {
    let vm = &planned.vms[vm];
    match vm.cpus.len() {
        1 => vm.name.clone(),
        _ => format!("vCPU {number} of {}", vm.name),
    }
}

/// Limit on restarts of a VM, in words.
fn again(limit: Limit) -> String {
    let times = count(usize::from(limit.most), "time");
    format!("starts again, {times} in {} s at most", limit.seconds)
}

/// Action when the guest of a VM asks for a reset, in words; none if it is the default.
fn reset(vm: &PlannedVm) -> Option<String> {
    match vm.resets {
        None => Some("starts again each time".to_owned()),
        Some(limit) => (limit != RESETS).then(|| again(limit)),
    }
}

/// Action when a VM crashes, in words; none if the VM just stays stopped.
fn crash(vm: &PlannedVm) -> Option<String> {
    match &vm.crash {
        CrashSpec::Halt => None,
        CrashSpec::Restart(limit) => Some(again(*limit)),
        CrashSpec::Notify(told) => Some(format!("stays stopped, and {} is told", told.value)),
    }
}
