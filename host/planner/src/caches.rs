//! In which caches of the board memory can be, and the parts of them that the planner chooses.

use std::borrow::Cow;
use std::iter::once;

use bulkhead_model::board::Board;
use bulkhead_model::describe::{Code, Finding, System};

use super::colours::{EL2, all, cache_text, count, of, repeat, unknown};
use super::{PlannedCpu, PlannedIo, cpus};

/// Whether the description says anything of colours.
fn are_used(system: &System) -> bool {
    all(system).any(|(_, colours)| colours.part.is_some() || colours.mask.is_some())
}

/// The numbers of the caches in which the memory of a VM can be: those of the CPUs on which its vCPUs run, and those of the service threads that reach its
/// memory.
fn caches_of(
    vm: usize,
    system: &System,
    board: &Board,
    cpus: &[PlannedCpu],
    io: Option<&PlannedIo>,
) -> Vec<usize> {
    let pool = system.vms[vm].cpu.pool.iter().map(|cpu| cpu.value as usize);
    let threads = io.into_iter().flat_map(|io| {
        let all = io.threads.iter().enumerate();
        all.filter(move |(thread, _)| io.reaches(*thread, vm))
    });
    let own: Vec<usize> = { cpus::of_vm(cpus, vm).into_iter() }
        .chain(pool)
        .chain(threads.map(|(_, thread)| thread.cpu))
        .collect();
    let caches = board.caches.iter().enumerate();
    // Of one that has no CPU, which was reported, all.
    let caches = caches
        .filter(|(_, cache)| own.is_empty() || own.iter().any(|cpu| cache.cpus.contains(cpu)));
    caches.map(|(number, _)| number).collect()
}

/// Finds out in which caches the memory of each VM can be, and chooses the colours of EL2 and of VMs that say which part of the cache they have, in the order of
/// the file: the first ones that nobody names. Reports parts that there are not.
pub(super) fn choose<'a>(
    system: &'a System,
    board: &Board,
    cpus: &[PlannedCpu],
    io: Option<&PlannedIo>,
    findings: &mut Vec<Finding>,
) -> Cow<'a, System> {
    if !are_used(system) {
        return Cow::Borrowed(system);
    }
    let mut chosen = system.clone();
    chosen.el2.caches = (0..board.caches.len()).collect();
    for (number, vm) in chosen.vms.iter_mut().enumerate() {
        vm.colours.caches = caches_of(number, system, board, cpus, io);
    }
    // Of each cache.
    let mut taken = vec![0; board.caches.len()];
    for (_, colours) in all(&chosen).filter(|(_, colours)| colours.mask.is_some()) {
        for cache in &colours.caches {
            taken[*cache] |= of(colours, board);
        }
    }
    let vms = chosen.vms.iter_mut();
    let vms = vms.map(|vm| (vm.name.value.as_str(), &mut vm.colours));
    for (name, colours) in once((EL2, &mut chosen.el2)).chain(vms) {
        let Some(part) = colours.part.clone() else {
            continue;
        };
        let (some, of) = part.value;
        let Some(count) = count(colours, board) else {
            findings.push(unknown(system).at(part.span, "a part of which cache?"));
            continue;
        };
        if !(count * some).is_multiple_of(of) {
            let what = format!(
                "{} has {count} colours, which have no {some}/{of}",
                cache_text(colours, board)
            );
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
        let is_free = |number: &u32| {
            let colour = repeat(1 << number, count);
            let mut caches = colours.caches.iter();
            caches.all(|cache| taken[*cache] & colour == 0)
        };
        let mut free: Vec<u32> = (0..count).filter(is_free).collect();
        // What is one colour of a smaller cache together, so that most of that is left for who has parts of both.
        let least = board.caches.iter().map(|cache| cache.colours).min();
        free.sort_by_key(|number| number % least.unwrap_or(count));
        let Some(own) = free.get(..wanted as usize) else {
            let left = free.len();
            let what = format!(
                "{some}/{of} of the cache are {wanted} colours, and {left} of {count} are left"
            );
            findings.push(
                Finding::new(Code::ColoursLeft, what)
                    .at(part.span, format!("`{name}` is to have {wanted}"))
                    .help("give it, or what comes before it, a smaller part"),
            );
            continue;
        };
        let mask = own.iter().fold(0, |all, number| all | 1 << number);
        for cache in &colours.caches {
            taken[*cache] |= repeat(mask, count);
        }
        colours.mask = Some(part.map(|_| mask));
    }
    Cow::Owned(chosen)
}
