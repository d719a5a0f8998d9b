//! What a VM finds in its memory when it starts: what it runs, its initial RAM disk and its device tree, and where each of them is.

use bulkhead_abi::plan::PAGE;
use bulkhead_core::plan::Span;
use bulkhead_model::describe::{self, Code, Finding, PayloadSpec, Size, VmSpec};

use super::contents::Contents;
use super::file::{Content, File};
use super::payload::{LinuxImage, Program};

/// Blocks of stage 2, and of the kernel's first mapping.
const BLOCK: u64 = 2 << 20;
/// Multiples of this may be addresses of device trees (Devicetree Specification, 5.2).
const TREE_ALIGN: u64 = 8;

/// Memory contents and entry point with which a VM starts.
pub(super) struct Start {
    /// IPA of its first instruction.
    pub entry: u64,
    /// IPA of its device tree.
    pub tree: u64,
    /// Payloads: name, IPA and content.
    pub payloads: Vec<(&'static str, u64, Content)>,
}

/// Start and end of the initial RAM disk, for the device tree.
pub(super) type Initrd = Option<(u64, u64)>;

/// What a VM runs, in its place.
struct Placed {
    entry: u64,
    pieces: Vec<(&'static str, u64, Content)>,
    /// Memory that it takes.
    memory: Vec<Span>,
    /// What the device tree and the RAM disk are aligned to: a kernel wants blocks of its own.
    align: u64,
    initrd: Option<File>,
}

/// Puts what a VM runs into its RAM. `dtb` makes the device tree that tells of an initial RAM disk there. Without a result that is
/// impossible, and reported.
pub(super) fn start(
    (spec, ram): (&VmSpec, (u64, u64)),
    contents: Contents,
    mut dtb: impl FnMut(Initrd, &mut Vec<Finding>) -> Vec<u8>,
    findings: &mut Vec<Finding>,
) -> Option<Start> {
    let placed = match contents {
        Contents::Linux { kernel, initrd } => linux(ram, kernel, initrd),
        Contents::Program { program, initrd } => {
            self::program((spec, ram), program, initrd, findings)?
        }
        Contents::Absent => nothing_yet(ram),
    };
    let Placed {
        entry,
        pieces: mut payloads,
        mut memory,
        align,
        initrd,
    } = placed;
    // The tree has the same length wherever the RAM disk is. What is wrong with it is reported below.
    let size = dtb(initrd.as_ref().map(|_| (0, 0)), &mut Vec::new()).len() as u64;
    let behind = memory.iter().map(|span| span.end).max().unwrap_or(ram.0);
    let tree = match &spec.tree {
        Some(said) => said.value,
        None => usual_tree(ram, (&memory, behind), align, size),
    };
    if !tree_fits((spec, ram), (tree, size), &memory, findings) {
        return None;
    }
    memory.extend(Span::new(tree, size));
    let disk = initrd.map(|file| {
        let length = file.bytes().len() as u64;
        let ipa = free(ram, (&memory, behind), align, length);
        memory.extend(Span::new(ipa, length));
        (ipa, file)
    });
    let place = disk
        .as_ref()
        .map(|(ipa, file)| (*ipa, ipa + file.bytes().len() as u64));
    payloads.push((
        "device tree",
        tree,
        File::new(dtb(place, findings)).content(),
    ));
    payloads.extend(disk.map(|(ipa, file)| ("initial RAM disk", ipa, file.content())));
    let end = memory.iter().map(|span| span.end).max().unwrap_or(ram.0);
    fits((spec, ram), end, findings).then_some(Start {
        entry,
        tree,
        payloads,
    })
}

/// A kernel where its header asks for.
fn linux(ram: (u64, u64), (header, image): (LinuxImage, File), initrd: Option<File>) -> Placed {
    let entry = ram.0 + header.text_offset;
    Placed {
        entry,
        pieces: vec![("kernel", entry, image.content())],
        memory: Span::new(entry, header.memory).into_iter().collect(),
        align: BLOCK,
        initrd,
    }
}

/// A program where it is linked; none if that is below the RAM.
fn program(
    (spec, ram): (&VmSpec, (u64, u64)),
    program: Program,
    initrd: Option<File>,
    findings: &mut Vec<Finding>,
) -> Option<Placed> {
    let outside = program.pieces.iter().find(|(ipa, _)| *ipa < ram.0);
    if let Some((ipa, _)) = outside {
        let what = format!(
            "the program of `{}` is not made for its RAM",
            spec.name.value
        );
        findings.push(
            Finding::new(Code::ImagePlace, what)
                .at(payload_span(spec), format!("goes to {ipa:#x}"))
                .at(
                    spec.memory
                        .ipa
                        .as_ref()
                        .map_or(spec.memory.size.span.clone(), |ipa| ipa.span.clone()),
                    format!("RAM starts at {:#x}", ram.0),
                )
                .help(
                    "move the RAM with memory = { size = .., ipa = .. }, or link the program elsewhere",
                ),
        );
        return None;
    }
    let memory = program.memory.iter();
    let memory = memory.filter_map(|(start, end)| Span::new(*start, end - start));
    let memory = memory.collect();
    let pieces = program.pieces.into_iter();
    Some(Placed {
        entry: program.entry,
        pieces: pieces.map(|(ipa, bytes)| ("program", ipa, bytes)).collect(),
        memory,
        align: PAGE,
        initrd,
    })
}

/// Stands in for a payload that has not been built or fetched yet.
fn nothing_yet(ram: (u64, u64)) -> Placed {
    let size = TREE_ALIGN;
    let content = File::new(vec![0; size as usize]).content();
    Placed {
        entry: ram.0,
        pieces: vec![("nothing yet", ram.0, content)],
        memory: Span::new(ram.0, size).into_iter().collect(),
        align: PAGE,
        initrd: None,
    }
}

/// Where the device tree of `size` bytes goes if the description does not say: behind a kernel; below a program if there is room, as QEMU
/// does, else at the end of the RAM.
fn usual_tree(ram: (u64, u64), (memory, behind): (&[Span], u64), align: u64, size: u64) -> u64 {
    let first = memory.iter().map(|span| span.start).min().unwrap_or(ram.0);
    let size = size.next_multiple_of(PAGE);
    if align == BLOCK {
        behind.next_multiple_of(BLOCK)
    } else if ram.0 + size <= first {
        ram.0
    } else {
        let last = (ram.0 + ram.1).saturating_sub(size);
        last.max(behind.next_multiple_of(PAGE))
    }
}

/// The first free place for `size` bytes at a multiple of `align`, behind what the VM runs. A program that is linked to the end of its RAM
/// has it before itself; a kernel does not reach memory before itself.
fn free(ram: (u64, u64), (memory, behind): (&[Span], u64), align: u64, size: u64) -> u64 {
    let first_from = |from: u64| {
        let mut start = from.next_multiple_of(align);
        while let Some(wish) = Span::new(start, size)
            && let Some(other) = memory.iter().find(|other| other.overlaps(wish))
        {
            start = other.end.next_multiple_of(align);
        }
        start
    };
    let start = first_from(behind);
    if align != BLOCK && start.saturating_add(size) > ram.0 + ram.1 {
        first_from(ram.0)
    } else {
        start
    }
}

/// Whether the device tree can be where the description wants it.
fn tree_fits(
    (spec, ram): (&VmSpec, (u64, u64)),
    (tree, size): (u64, u64),
    memory: &[Span],
    findings: &mut Vec<Finding>,
) -> bool {
    let Some(said) = &spec.tree else {
        return true;
    };
    let name = &spec.name.value;
    let last = ram.0 + ram.1;
    let span = Span::new(tree, size);
    let inside = span.filter(|span| ram.0 <= span.start && span.end <= last);
    let other = inside.and_then(|span| memory.iter().find(|other| other.overlaps(span)));
    let (why, help) = if tree % TREE_ALIGN != 0 {
        let next = tree.checked_next_multiple_of(TREE_ALIGN).unwrap_or(0);
        (
            format!("not a multiple of {TREE_ALIGN}"),
            format!("{next:#x} is one"),
        )
    } else if inside.is_none() {
        (
            format!("the RAM is from {:#x} to {last:#x}", ram.0),
            format!("it takes {size} bytes: choose an address in the RAM, or leave the key out"),
        )
    } else if let Some(other) = other {
        (
            format!(
                "what it runs is from {:#x} to {:#x}",
                other.start, other.end
            ),
            format!("it takes {size} bytes: choose another address, or leave the key out"),
        )
    } else {
        return true;
    };
    let what = format!("the device tree of `{name}` cannot go there");
    findings.push(
        Finding::new(Code::ImageTree, what)
            .at(said.span.clone(), why)
            .help(help),
    );
    false
}

/// Whether the RAM of a VM has room for what it runs, which ends at `end`.
fn fits((spec, ram): (&VmSpec, (u64, u64)), end: u64, findings: &mut Vec<Finding>) -> bool {
    let needed = end.saturating_sub(ram.0);
    if needed <= ram.1 {
        return true;
    }
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
    false
}

/// Place at which the description names the payload of a VM.
fn payload_span(spec: &VmSpec) -> describe::Span {
    match &spec.payload {
        PayloadSpec::Linux { kernel, .. } => kernel.span.clone(),
        PayloadSpec::Program { image, .. } => image.span.clone(),
        PayloadSpec::Unknown => spec.name.span.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAM: (u64, u64) = (0x4000_0000, 4 << 20);

    fn span(start: u64, size: u64) -> Span {
        Span::new(start, size).expect("sound")
    }

    #[test]
    fn what_comes_later_makes_way() {
        let taken = [span(0x4008_0000, 0x1_0001), span(0x4009_2000, 8)];
        let behind = 0x4009_0001;
        // One page is free before the other thing, two are not.
        let place = |size| free(RAM, (&taken, behind), PAGE, size);
        assert_eq!(place(PAGE), 0x4009_1000);
        assert_eq!(place(PAGE + 1), 0x4009_3000);
        // A program goes before itself where there is no room behind, a kernel does not.
        let high = [span(0x4030_0000, 1 << 20)];
        let behind = 0x4040_0000;
        assert_eq!(free(RAM, (&high, behind), PAGE, 8), RAM.0);
        assert_eq!(free(RAM, (&high, behind), BLOCK, 8), behind);
    }

    #[test]
    fn trees_are_below_programs_or_at_the_end_and_behind_kernels() {
        let low = [span(0x4000_1000, 0x1000)];
        let tree = |align, size| usual_tree(RAM, (&low, 0x4000_2000), align, size);
        assert_eq!(tree(PAGE, PAGE), RAM.0);
        assert_eq!(tree(PAGE, PAGE + 1), 0x4040_0000 - 2 * PAGE);
        assert_eq!(tree(BLOCK, 8), 0x4020_0000);
    }
}
