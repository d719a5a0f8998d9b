//! Colours of memory: which VM has which, and who may have the same.

use std::borrow::Cow;
use std::iter::once;

use bulkhead_abi::plan::{ALL_COLOURS, MAX_COLOURS};

use bulkhead_model::board::Board;
use bulkhead_model::describe::{
    Code, ColoursSpec, Finding, SharedSpec, Span, System, VmSpec, colours_text,
};

/// The name of EL2 in findings.
const EL2: &str = "el2";

/// Those of EL2, then of all VMs.
fn all(system: &System) -> impl Iterator<Item = (&str, &ColoursSpec)> {
    let vms = system.vms.iter();
    let vms = vms.map(|vm| (vm.name.value.as_str(), &vm.colours));
    once((EL2, &system.el2)).chain(vms)
}

/// Chooses the colours of EL2 and of VMs that say which part of the cache they have, in the order of the file: the first ones that nobody names. Reports parts that there are not.
pub(super) fn choose<'a>(
    system: &'a System,
    board: &Board,
    findings: &mut Vec<Finding>,
) -> Cow<'a, System> {
    if all(system).all(|(_, colours)| colours.part.is_none()) {
        return Cow::Borrowed(system);
    }
    let mut chosen = system.clone();
    let named = all(system).filter_map(|(_, colours)| colours.mask.as_ref());
    let mut taken = named.fold(0, |all, mask| all | mask.value);
    let vms = chosen.vms.iter_mut();
    let vms = vms.map(|vm| (vm.name.value.as_str(), &mut vm.colours));
    for (name, colours) in once((EL2, &mut chosen.el2)).chain(vms) {
        let Some(part) = colours.part.clone() else {
            continue;
        };
        let (some, of) = part.value;
        let Some(count) = board.colours else {
            findings.push(unknown(system).at(part.span, "a part of which cache?"));
            continue;
        };
        if !(count * some).is_multiple_of(of) {
            let what =
                format!("the cache of this board has {count} colours, which have no {some}/{of}");
            findings.push(
                Finding::new(Code::ColoursBoard, what)
                    .at(part.span, format!("parts of it are 1/{count} and more"))
                    .also(
                        system.board.as_ref().map(|board| board.place()),
                        "this board",
                    )
                    .help("ask for a larger part"),
            );
            continue;
        }
        let wanted = count * some / of;
        let all = ALL_COLOURS >> (MAX_COLOURS - count);
        let mut mask = 0;
        for _ in 0..wanted {
            let free = all & !taken & !mask;
            mask |= free & free.wrapping_neg();
        }
        if mask.count_ones() < wanted {
            let left = (all & !taken).count_ones();
            let what = format!(
                "{some}/{of} of the cache are {wanted} colours, and {left} of {count} are left"
            );
            findings.push(
                Finding::new(Code::ColoursLeft, what)
                    .at(part.span, format!("`{name}` is to have {wanted}"))
                    .help("give it, or what comes before it, a smaller part"),
            );
            continue;
        }
        taken |= mask;
        colours.mask = Some(part.map(|_| mask));
    }
    Cow::Owned(chosen)
}

/// That the board's colours are not known.
fn unknown(system: &System) -> Finding {
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

fn of(colours: &ColoursSpec, board: &Board) -> u64 {
    let mask = colours.mask.as_ref().zip(board.colours);
    let colours = mask.map(|(mask, count)| repeat(mask.value, count));
    // With none that the board has, everything else is still to be looked at.
    colours
        .filter(|colours| *colours != 0)
        .unwrap_or(ALL_COLOURS)
}

/// The same of shared memory: those of its VMs.
pub(super) fn of_shared(shared: &SharedSpec, system: &System, board: &Board) -> u64 {
    let vms = shared.vms.iter().filter_map(|(vm, _)| system.vms.get(*vm));
    // That nobody has it was reported.
    vms.map(|vm| of_vm(vm, board))
        .reduce(|all, one| all | one)
        .unwrap_or(ALL_COLOURS)
}

/// The bits of a mask of `count` colours, for all that a region has bits for.
fn repeat(mask: u64, count: u32) -> u64 {
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
        let Some(count) = board.colours else {
            findings.push(unknown(system).at(mask.span.clone(), "colours of which cache?"));
            continue;
        };
        let beyond = mask.value & !(ALL_COLOURS >> (MAX_COLOURS - count));
        if beyond != 0 {
            let what = format!(
                "this board's memory has no colours {}",
                colours_text(beyond)
            );
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
fn said(vm: &VmSpec) -> String {
    match &vm.colours.mask {
        Some(mask) => format!("`{}` has {}", vm.name.value, colours_text(mask.value)),
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
                    .at(place(vm), said(vm))
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

/// Whether both say that others may have the same colours.
fn both_say(one: &VmSpec, other: &VmSpec) -> bool {
    one.colours.shared.is_some() && other.colours.shared.is_some()
}

fn check_shared(system: &System, board: &Board, findings: &mut Vec<Finding>) {
    for (n, vm) in system.vms.iter().enumerate() {
        let own = of_vm(vm, board);
        let others = system.vms.iter().take(n);
        let mut others =
            others.filter(|other| !both_say(vm, other) && !is_plain(own & of_vm(other, board)));
        let Some(other) = others.find(|other| own & of_vm(other, board) != 0) else {
            continue;
        };
        let what = format!(
            "`{}` and `{}` have memory of the same colours",
            other.name.value, vm.name.value
        );
        findings.push(
            Finding::new(Code::ColoursShared, what)
                .at(place(vm), said(vm))
                .at(place(other), said(other))
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
            common != 0 && !is_plain(common) && users().any(|user| !both_say(user, vm))
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
