//! Colours of memory: which VM has which, and who may have the same.

use std::iter::once;

use bulkhead_abi::plan::{ALL_COLOURS, MAX_COLOURS};

use bulkhead_model::board::Board;
use bulkhead_model::describe::{
    Code, ColoursSpec, Finding, SharedSpec, Span, System, VmSpec, colours_text,
};

/// The name of EL2 in findings.
pub(super) const EL2: &str = "el2";

/// Those of EL2, then of all VMs.
pub(super) fn all(system: &System) -> impl Iterator<Item = (&str, &ColoursSpec)> {
    let vms = system.vms.iter();
    let vms = vms.map(|vm| (vm.name.value.as_str(), &vm.colours));
    once((EL2, &system.el2)).chain(vms)
}

/// The colours of the smallest cache in which memory can be: what is one of them is several of a larger cache. None if that is not known.
pub(super) fn count(colours: &ColoursSpec, board: &Board) -> Option<u32> {
    let caches = colours.caches.iter();
    let caches = caches.filter_map(|cache| board.caches.get(*cache));
    caches.map(|cache| cache.colours).min()
}

/// The caches in which memory can be, in words.
pub(super) fn cache_text(colours: &ColoursSpec, board: &Board) -> &'static str {
    match (board.caches.len(), colours.caches.len()) {
        (0 | 1, _) => "the cache of this board",
        (_, 1) => "the cache of its CPUs",
        _ => "the smallest cache of its CPUs",
    }
}

/// That the board's colours are not known.
pub(super) fn unknown(system: &System) -> Finding {
    let of_board = system.board.as_ref().map(|board| board.place());
    Finding::new(Code::ColoursBoard, "the colours of this board's memory are not known")
        .also(of_board, "its device tree does not tell the size and the ways of a cache that the CPUs share")
        .help("add `colours` to [board]: the size of that cache, by its ways, by 4 KiB, such as 16 for 1 MiB of 16 ways")
}

/// [`Region::colours`](bulkhead_abi::plan::Region::colours) of the RAM of a VM. What is wrong was reported, and is left out.
pub(super) fn of_vm(vm: &VmSpec, board: &Board) -> u64 {
    of(&vm.colours, board)
}

/// [`Image::colours`](bulkhead_abi::plan::Image::colours).
pub(super) fn of_el2(system: &System, board: &Board) -> u64 {
    of(&system.el2, board)
}

pub(super) fn of(colours: &ColoursSpec, board: &Board) -> u64 {
    let mask = colours.mask.as_ref().zip(count(colours, board));
    let colours = mask.map(|(mask, count)| repeat(mask.value, count));
    // With none that the board has, everything else is still to be looked at.
    colours
        .filter(|colours| *colours != 0)
        .unwrap_or(ALL_COLOURS)
}

/// The same of shared memory: those of its VMs, of the smallest cache of any of them.
pub(super) fn of_shared(shared: &SharedSpec, system: &System, board: &Board) -> u64 {
    let vms = || shared.vms.iter().filter_map(|(vm, _)| system.vms.get(*vm));
    let own = vms()
        .map(|vm| of_vm(vm, board))
        .reduce(|all, one| all | one);
    // That nobody has it was reported.
    let own = own.unwrap_or(ALL_COLOURS);
    let least = vms().filter_map(|vm| count(&vm.colours, board)).min();
    let mut count = MAX_COLOURS;
    let mut all = own;
    while count > least.unwrap_or(MAX_COLOURS) {
        count /= 2;
        all |= all.rotate_right(count);
    }
    all
}

/// The bits of a mask of `count` colours, for all that a region has bits for.
pub(super) fn repeat(mask: u64, count: u32) -> u64 {
    let mask = mask & ALL_COLOURS >> (MAX_COLOURS - count);
    (0..MAX_COLOURS / count).fold(0, |all, n| all | mask << (n * count))
}

/// Reports colours that the board does not have, and those that VMs share without saying so.
pub(super) fn check(system: &System, board: &Board, findings: &mut Vec<Finding>) {
    let of_board = system.board.as_ref().map(|board| board.place());
    for (_, colours) in all(system) {
        let Some(mask) = &colours.mask else {
            continue;
        };
        let Some(count) = count(colours, board) else {
            findings.push(unknown(system).at(mask.span.clone(), "colours of which cache?"));
            continue;
        };
        let beyond = mask.value & !(ALL_COLOURS >> (MAX_COLOURS - count));
        if beyond != 0 {
            let cache = cache_text(colours, board);
            let what = format!("{cache} has no colours {}", colours_text(beyond));
            findings.push(
                Finding::new(Code::ColoursBoard, what)
                    .at(
                        mask.span.clone(),
                        format!("it has {count}: 0-{}", count - 1),
                    )
                    .also(of_board.clone(), "this board")
                    .help("name those that it has"),
            );
        }
    }
    let is_unknown = |colours: &ColoursSpec| colours.part.is_some() && colours.mask.is_none();
    // Why a part was not cut has been said.
    if all(system).all(|(_, colours)| colours.mask.is_none())
        || all(system).any(|(_, colours)| is_unknown(colours))
    {
        return;
    }
    check_el2(system, board, findings);
    check_shared(system, board, findings);
}

/// The place at which a VM says its colours, or its name.
fn place(vm: &VmSpec) -> Span {
    let mask = vm.colours.mask.as_ref();
    mask.map_or(vm.name.span.clone(), |mask| mask.span.clone())
}

/// What a VM says of its colours.
fn said(vm: &VmSpec, board: &Board) -> String {
    let of = match count(&vm.colours, board) {
        Some(count) if board.caches.len() > 1 => format!(" of {count}"),
        _ => String::new(),
    };
    match &vm.colours.mask {
        Some(mask) => format!("`{}` has {}{of}", vm.name.value, colours_text(mask.value)),
        None => format!("`{}` has all, as it names none", vm.name.value),
    }
}

/// Reports VMs that have colours of EL2 without saying so, by their RAM or by shared memory.
fn check_el2(system: &System, board: &Board, findings: &mut Vec<Finding>) {
    let Some(mask) = &system.el2.mask else {
        return;
    };
    let own = of_el2(system, board);
    if is_plain(own) {
        return;
    }
    let el2 = format!("EL2 has {}", colours_text(mask.value));
    let help = "give it `colours` that EL2 does not have; or say share_colours = true in it, and it and EL2 evict from the cache what the other needs";
    for vm in &system.vms {
        if vm.colours.shared.is_none() && of_vm(vm, board) & own != 0 {
            let what = format!("`{}` has memory of EL2's colours", vm.name.value);
            findings.push(
                Finding::new(Code::ColoursShared, what)
                    .at(place(vm), said(vm, board))
                    .at(mask.span.clone(), el2.clone())
                    .help(help),
            );
        }
    }
    for shared in &system.shared {
        let users = shared.vms.iter().filter_map(|(vm, _)| system.vms.get(*vm));
        let mut users =
            users.filter(|vm| vm.colours.shared.is_none() && of_vm(vm, board) & own == 0);
        if of_shared(shared, system, board) & own == 0 {
            continue;
        }
        if let Some(vm) = users.next() {
            let what = format!(
                "the shared memory `{}` has EL2's colours",
                shared.name.value
            );
            findings.push(
                Finding::new(Code::ColoursShared, what)
                    .at(shared.name.span.clone(), "it has the colours of all its VMs")
                    .at(place(vm), format!("`{}` does not say that it shares colours", vm.name.value))
                    .at(mask.span.clone(), el2.clone())
                    .help("say share_colours = true in all VMs that have it, or give all of them other `colours`"),
            );
        }
    }
}

/// A cache in which the memory of both VMs can be.
fn meet(one: &VmSpec, other: &VmSpec) -> Option<usize> {
    let mut caches = one.colours.caches.iter().copied();
    caches.find(|cache| other.colours.caches.contains(cache))
}

/// Whether both say that others may have the same colours.
fn both_say(one: &VmSpec, other: &VmSpec) -> bool {
    one.colours.shared.is_some() && other.colours.shared.is_some()
}

fn check_shared(system: &System, board: &Board, findings: &mut Vec<Finding>) {
    for (n, vm) in system.vms.iter().enumerate() {
        let own = of_vm(vm, board);
        let others = system.vms.iter().take(n);
        let mut others = others.filter(|other| {
            !both_say(vm, other)
                && !is_plain(own & of_vm(other, board))
                && meet(vm, other).is_some()
        });
        let Some(other) = others.find(|other| own & of_vm(other, board) != 0) else {
            continue;
        };
        let cache = meet(vm, other).and_then(|cache| board.caches.get(cache));
        let place = match cache.filter(|_| board.caches.len() > 1) {
            Some(cache) => format!(", in the cache of {}", cache.cpus_text()),
            None => String::new(),
        };
        let what = format!(
            "`{}` and `{}` have memory of the same colours{place}",
            other.name.value, vm.name.value
        );
        findings.push(
            Finding::new(Code::ColoursShared, what)
                .at(self::place(vm), said(vm, board))
                .at(self::place(other), said(other, board))
                .help("give them different `colours`; or say share_colours = true in both, and each evicts from the cache what the other needs"),
        );
    }
    for shared in &system.shared {
        let colours = of_shared(shared, system, board);
        let users = || shared.vms.iter().filter_map(|(vm, _)| system.vms.get(*vm));
        let strangers = system.vms.iter().enumerate();
        let mut strangers = strangers
            .filter(|(n, _)| shared.vms.iter().all(|(vm, _)| vm != n))
            .map(|(_, vm)| vm);
        let met = strangers.find(|vm| {
            let common = colours & of_vm(vm, board);
            let harms = |user| !both_say(user, vm) && meet(user, vm).is_some();
            common != 0 && !is_plain(common) && users().any(harms)
        });
        if let Some(vm) = met {
            let what = format!(
                "the shared memory `{}` has colours of `{}`, which does not have it",
                shared.name.value, vm.name.value
            );
            findings.push(
                Finding::new(Code::ColoursShared, what)
                    .at(shared.name.span.clone(), "it has the colours of all its VMs")
                    .at(place(vm), "these")
                    .help("give `colours` to all VMs that have it; or say share_colours = true in all of them"),
            );
        }
    }
}

/// Whether two regions with these colours in common have all.
const fn is_plain(common: u64) -> bool {
    common == ALL_COLOURS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_repeated_as_the_cache_repeats() {
        assert_eq!(repeat(0x1, 2), 0x5555_5555_5555_5555);
        assert_eq!(repeat(0x00ff, 16), 0x00ff_00ff_00ff_00ff);
        assert_eq!(repeat(0xffff, 16), ALL_COLOURS);
        assert_eq!(repeat(0x1_00ff, 16), 0x00ff_00ff_00ff_00ff);
        assert_eq!(repeat(1 << 63, 64), 1 << 63);
    }
}
