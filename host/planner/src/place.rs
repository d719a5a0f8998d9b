//! Physical places: first fit in the board's memory.

use bulkhead_abi::plan::{ALL_COLOURS, COLOUR_GROUP, PAGE, Region, RegionKind};
use bulkhead_core::plan::Span;
use zerocopy::FromZeros;

use bulkhead_model::board::{Board, PlanError};
use bulkhead_model::describe::{self, Code, Finding, Size, System};

use super::colours;
use super::guest::Guest;
use super::ipa::PMEM;
use super::tables::Layout;

/// Alignment of RAM: what one block of stage 2 maps.
const BLOCK: u64 = 2 << 20;

/// A range that has an owner.
struct Taken {
    span: Span,
    /// Which of its pages.
    colours: u64,
    /// Bytes of these.
    bytes: u64,
    who: String,
    place: Option<describe::Span>,
}

/// Memory of the board and who has which part of it.
struct MemoryMap<'a> {
    board: &'a Board,
    taken: Vec<Taken>,
}

impl MemoryMap<'_> {
    /// Takes the first range in which so much of these colours is free; ranges start at multiples of `align`. Returns its start.
    fn fit(&mut self, size: u64, align: u64, colours: u64, who: String) -> Option<u64> {
        let align = if colours == ALL_COLOURS {
            align
        } else {
            align.max(COLOUR_GROUP)
        };
        let (start, span) = self.board.memory.iter().find_map(|memory| {
            let mut start = memory.base.checked_next_multiple_of(align)?;
            loop {
                let span = span(start, size, colours)?;
                if span.end > memory.base + memory.size {
                    return None;
                }
                match self.taken.iter().find(|taken| taken.meets(span, colours)) {
                    Some(taken) => start = taken.span.end.checked_next_multiple_of(align)?,
                    None => return Some((start, span)),
                }
            }
        })?;
        self.taken.push(Taken {
            span,
            colours,
            bytes: size,
            who,
            place: None,
        });
        Some(start)
    }

    /// Number of free bytes.
    fn free(&self) -> u64 {
        let all: u64 = self.board.memory.iter().map(|memory| memory.size).sum();
        let taken: u64 = self.taken.iter().map(|taken| taken.bytes).sum();
        all.saturating_sub(taken)
    }

    fn take(&mut self, span: Span, who: String, place: Option<describe::Span>) {
        self.taken.push(Taken {
            span,
            colours: ALL_COLOURS,
            bytes: span.end - span.start,
            who,
            place,
        });
    }
}

impl Taken {
    /// Whether a page of the range with one of these colours is taken.
    fn meets(&self, span: Span, colours: u64) -> bool {
        self.colours & colours != 0 && self.span.overlaps(span)
    }
}

/// Bytes in which so much of these colours lies.
fn spread(size: u64, colours: u64) -> u64 {
    span(0, size, colours).map_or(u64::MAX, |span| span.end.next_multiple_of(COLOUR_GROUP))
}

/// The range in which so much of these colours lies.
fn span(start: u64, size: u64, colours: u64) -> Option<Span> {
    bulkhead_core::colours::span(&Region {
        pa: start,
        size,
        colours,
        ..Region::new_zeroed()
    })
}

/// Finds physical places for the RAM of all VMs and for shared memory, and enters them in the
/// guests' regions. `owners` are the VMs of the guests: of a description that is wrong, not all may be there.
pub(super) fn place(
    system: &System,
    board: &Board,
    layout: &Layout,
    (owners, guests): (&[usize], &mut [Guest]),
    findings: &mut Vec<Finding>,
) -> Result<(), PlanError> {
    let before = findings.len();
    colours::check(system, board, findings);
    let mut map = MemoryMap {
        board,
        taken: Vec::new(),
    };
    for reserved in &board.reserved {
        if let Some(span) = Span::new(reserved.base, reserved.size) {
            map.take(span, "the board's firmware".to_owned(), None);
        }
    }
    place_image(system, layout, &mut map, findings)?;
    fixed(system, &mut map, findings);
    place_ram(system, layout, &mut map, (owners, guests), findings);
    place_shared(system, &mut map, guests, findings);
    place_pmem(system, &mut map, (owners, guests), findings);
    if findings[before..].iter().any(|finding| finding.is_error()) {
        return Err(PlanError::Description);
    }
    Ok(())
}

/// Takes the place of the image, which the board's loader chooses.
fn place_image(
    system: &System,
    layout: &Layout,
    map: &mut MemoryMap,
    findings: &mut Vec<Finding>,
) -> Result<(), PlanError> {
    let image = Span::new(layout.base, layout.max_size).filter(|image| {
        let memory = map.board.memory.iter();
        memory
            .clone()
            .any(|memory| memory.base <= image.start && image.end <= memory.base + memory.size)
            && !map.taken.iter().any(|taken| taken.span.overlaps(*image))
    });
    let Some(image) = image else {
        findings.push(
            Finding::new(
                Code::MemoryImage,
                "the image does not fit the board's memory",
            )
            .at(
                system.vms.first().map_or(0..0, |vm| vm.name.span.clone()),
                format!("it takes {} with all payloads", Size(layout.max_size)),
            )
            .help("give the board more `memory`, or VMs smaller payloads"),
        );
        return Err(PlanError::Description);
    };
    map.take(image, "the image".to_owned(), None);
    Ok(())
}

/// Finds places for the RAM of VMs whose description names none.
fn place_ram(
    system: &System,
    layout: &Layout,
    map: &mut MemoryMap,
    (owners, guests): (&[usize], &mut [Guest]),
    findings: &mut Vec<Finding>,
) {
    let at_board = system.board.as_ref().map(|board| board.memory_place());
    for (&vm, guest) in owners.iter().zip(guests.iter_mut()) {
        let spec = &system.vms[vm];
        let wish = spec.memory.pa.as_ref().map(|pa| pa.value);
        let colours = colours::of_vm(spec, map.board);
        let who = format!("`{}`", spec.name.value);
        let pa = wish.or_else(|| map.fit(spec.memory.size.value, BLOCK, colours, who));
        let Some(pa) = pa else {
            let others: u64 = system
                .vms
                .iter()
                .take(vm)
                .map(|vm| vm.memory.size.value)
                .sum();
            findings.push(
                Finding::new(
                    Code::MemoryFull,
                    format!("there is no room for the memory of `{}`", spec.name.value),
                )
                .at(
                    spec.memory.size.span.clone(),
                    format!(
                        "{} wanted, {} free, perhaps in pieces",
                        Size(spec.memory.size.value),
                        free(map)
                    ),
                )
                .also(at_board.clone(), memory_of(map))
                .help(match colours {
                    ALL_COLOURS => format!(
                        "VMs before it have {}, the image {}; give the board more `memory` or VMs less",
                        Size(others),
                        Size(layout.max_size)
                    ),
                    _ => format!(
                        "with its colours it lies in {}, where others have the rest; give it more of them, or less memory",
                        Size(spread(spec.memory.size.value, colours))
                    ),
                }),
            );
            continue;
        };
        for mapped in &mut guest.regions {
            if mapped.region.kind == RegionKind::Ram as u16 && mapped.what != PMEM {
                mapped.region.pa = pa;
            }
        }
    }
}

/// Finds places for what pmem regions of cached channels start with.
fn place_pmem(
    system: &System,
    map: &mut MemoryMap,
    (owners, guests): (&[usize], &mut [Guest]),
    findings: &mut Vec<Finding>,
) {
    for (&vm, guest) in owners.iter().zip(guests.iter_mut()) {
        let name = &system.vms[vm].name;
        for mapped in guest.regions.iter_mut().filter(|it| it.what == PMEM) {
            let region = &mut mapped.region;
            let who = format!("`{}`", name.value);
            match map.fit(region.size, PAGE, region.colours, who) {
                Some(pa) => region.pa = pa,
                None => findings.push(
                    Finding::new(
                        Code::MemoryFull,
                        format!("there is no room for the {PMEM} of `{}`", name.value),
                    )
                    .at(name.span.clone(), format!("{} wanted", Size(region.size)))
                    .help("give the board more `memory`, or VMs less"),
                ),
            }
        }
    }
}

/// Finds places for shared memory.
fn place_shared(
    system: &System,
    map: &mut MemoryMap,
    guests: &mut [Guest],
    findings: &mut Vec<Finding>,
) {
    let at_board = system.board.as_ref().map(|board| board.memory_place());
    for (number, shared) in system.shared.iter().enumerate() {
        let align = if shared.size.value >= BLOCK {
            BLOCK
        } else {
            PAGE
        };
        let what = if shared.is_added {
            shared.name.value.clone()
        } else {
            format!("the shared memory `{}`", shared.name.value)
        };
        let colours = colours::of_shared(shared, system, map.board);
        let who = format!("`{}`", shared.name.value);
        let Some(pa) = map.fit(shared.size.value, align, colours, who) else {
            findings.push(
                Finding::new(Code::MemoryFull, format!("there is no room for {what}"))
                    .at(
                        shared.size.span.clone(),
                        format!("{} wanted, {} free", Size(shared.size.value), free(map)),
                    )
                    .also(at_board.clone(), memory_of(map))
                    .help("give the board more `memory`, or VMs less"),
            );
            continue;
        };
        for mapped in guests.iter_mut().flat_map(|guest| guest.regions.iter_mut()) {
            let region = &mut mapped.region;
            if region.kind == RegionKind::Shared as u16 && usize::from(region.shared) == number {
                region.pa = pa;
            }
        }
    }
}

/// Size of the board's memory, for messages.
fn memory_of(map: &MemoryMap) -> String {
    let memory = map.board.memory.iter().map(|memory| memory.size);
    format!("has {} in all", Size(memory.sum()))
}

/// Free memory, rounded down for messages.
fn free(map: &MemoryMap) -> Size {
    Size(map.free() & !((1 << 20) - 1))
}

/// RAM for which the description names the place.
fn fixed(system: &System, map: &mut MemoryMap, findings: &mut Vec<Finding>) {
    let board = system.board.as_ref().map(|board| board.memory_place());
    for spec in &system.vms {
        let Some(pa) = &spec.memory.pa else { continue };
        let name = &spec.name.value;
        let colours = colours::of_vm(spec, map.board);
        let span = span(pa.value, spec.memory.size.value, colours).filter(|span| {
            map.board
                .memory
                .iter()
                .any(|memory| memory.base <= span.start && span.end <= memory.base + memory.size)
        });
        let Some(span) = span else {
            let ranges: Vec<_> = map
                .board
                .memory
                .iter()
                .map(|memory| format!("{:#x} to {:#x}", memory.base, memory.base + memory.size))
                .collect();
            findings.push(
                Finding::new(
                    Code::MemoryOutside,
                    format!("the memory of `{name}` is not in the board's memory"),
                )
                .at(
                    pa.span.clone(),
                    format!("{} from here", Size(spec.memory.size.value)),
                )
                .also(board.clone(), format!("its memory: {}", ranges.join(", ")))
                .help("leave `pa` out and the planner chooses"),
            );
            continue;
        };
        if let Some(other) = map.taken.iter().find(|taken| taken.meets(span, colours)) {
            let finding = Finding::new(
                Code::MemoryTaken,
                format!("the memory of `{name}` is that of {} too", other.who),
            )
            .at(
                pa.span.clone(),
                format!("{:#x} to {:#x}", span.start, span.end),
            );
            let place = other.place.clone().or_else(|| board.clone());
            let text = format!(
                "{} has {:#x} to {:#x}",
                other.who, other.span.start, other.span.end
            );
            let finding = finding.also(place, text);
            findings.push(finding.help("leave `pa` out and the planner chooses"));
        }
        map.taken.push(Taken {
            span,
            colours,
            bytes: spec.memory.size.value,
            who: format!("`{name}`"),
            place: Some(pa.span.clone()),
        });
    }
}
