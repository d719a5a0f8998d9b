//! Translation at EL1: every address to itself, 39 bits, in blocks. RAM is Normal write-back memory, so
//! that caches, exclusives and unaligned accesses work, and so is what a backend shares with EL2, which maps it so;
//! regions of channels are likewise; regions shared with other VMs are Normal non-cacheable, because a peer may map them so; everything else is Device
//! memory, execute-never.

use crate::backend;
use crate::board::{Board, Range};
use crate::sysreg::{dsb, isb};
use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use dtoolkit::fdt::FdtNode;

/// Block descriptor (DDI 0487, D8.3): valid, access flag.
const BLOCK: u64 = 1 | 1 << 10;
/// Execute-never at EL1 and EL0.
const NEVER_EXECUTE: u64 = 3 << 53;
const INNER_SHAREABLE: u64 = 3 << 8;
/// Normal, write-back: attribute 0.
pub const NORMAL: u64 = BLOCK | INNER_SHAREABLE;
/// Device-nGnRE: attribute 1.
pub(crate) const DEVICE: u64 = BLOCK | 1 << 2 | NEVER_EXECUTE;
/// Normal, non-cacheable: attribute 2.
const UNCACHED: u64 = BLOCK | 2 << 2 | INNER_SHAREABLE | NEVER_EXECUTE;
/// The index of the attributes in a descriptor, and what makes it valid.
const ATTRIBUTES: u64 = 7 << 2 | 1;
/// Descriptor of a table: valid, not a block.
const TABLE: u64 = 3;
/// MAIR_EL1: attributes 0 to 2.
pub(crate) const MAIR: u64 = 0x44_04_ff;
/// TCR_EL1: 39 bits by TTBR0 with write-back, inner shareable walks; TTBR1 off; 4 KiB granule.
pub(crate) const TCR: u64 = 25 | 1 << 8 | 1 << 10 | 3 << 12 | 1 << 23;
/// SCTLR_EL1: MMU, caches, SP alignment check, and the bits that are 1 on Armv8.0.
pub(crate) const SCTLR: u64 = 0x30d0_0800 | 1 | 1 << 2 | 1 << 3 | 1 << 12;

const GIB: usize = 1 << 30;
const MIB2: usize = 2 << 20;

#[repr(C, align(4096))]
struct Table([AtomicU64; 512]);

#[unsafe(no_mangle)]
static MMU_LEVEL1: Table = Table([const { AtomicU64::new(0) }; 512]);
#[unsafe(no_mangle)]
static MMU_LEVEL2: Table = Table([const { AtomicU64::new(0) }; 512]);

/// Whether translation is on.
pub fn is_on() -> bool {
    mrs!("sctlr_el1") & 1 != 0
}

/// Gives each block the memory type that the device tree calls for. Start-up mapped the whole GiB of
/// the image as Normal memory.
pub(crate) fn refine(board: &Board) {
    let own = board.image.base / GIB;
    for index in 0..512 {
        let block = Range {
            base: own * GIB + index * MIB2,
            size: MIB2,
        };
        if overlaps(&board.memory, block) || block.overlaps(board.image) {
            continue;
        }
        let shared = board
            .shared
            .iter()
            .any(|region| region.range.overlaps(block));
        let mut channels = board.channels.iter().flat_map(|channel| channel.memory);
        // Both ends of a channel map it as RAM (ADR 25).
        let kind = match (shared, channels.any(|memory| memory.overlaps(block))) {
            (true, _) => UNCACHED,
            (_, true) => NORMAL,
            _ => DEVICE,
        };
        replace(&MMU_LEVEL2.0[index], block.base as u64 | kind);
    }
    for index in (0..512).filter(|index| *index != own) {
        let block = Range {
            base: index * GIB,
            size: GIB,
        };
        let mut channels = board.channels.iter().flat_map(|channel| channel.memory);
        // Behind the RAM of a Linux that has much: the planner puts nothing else there.
        if overlaps(&board.memory, block) || channels.any(|memory| memory.overlaps(block)) {
            replace(&MMU_LEVEL1.0[index], block.base as u64 | NORMAL);
        }
    }
    if let Some(node) = board.backend {
        refine_backend(board, node);
    }
}

/// Maps what a backend shares with EL2, and its disks, as RAM. A GiB that has devices stays as it is ([`is_normal`]).
fn refine_backend(board: &Board, node: FdtNode<'static>) {
    let own = board.image.base / GIB;
    for range in backend::ranges(node) {
        for index in range.base / MIB2..range.end().div_ceil(MIB2) {
            let block = Range {
                base: index * MIB2,
                size: MIB2,
            };
            let gib = Range {
                base: block.base / GIB * GIB,
                size: GIB,
            };
            if is_normal(block) {
                continue;
            }
            if block.base / GIB == own {
                let descriptor = block.base as u64 | NORMAL | NEVER_EXECUTE;
                replace(&MMU_LEVEL2.0[index % 512], descriptor);
            } else if gib.base / GIB < 512 && !overlaps(&board.devices, gib) {
                let descriptor = gib.base as u64 | NORMAL | NEVER_EXECUTE;
                replace(&MMU_LEVEL1.0[gib.base / GIB], descriptor);
            }
        }
    }
}

/// Whether all of a range is mapped as RAM is.
pub fn is_normal(range: Range) -> bool {
    (range.base / MIB2..range.end().div_ceil(MIB2)).all(|index| {
        let Some(level1) = MMU_LEVEL1.0.get(index / 512) else {
            return false;
        };
        let level1 = level1.load(Relaxed);
        let entry = if level1 & TABLE == TABLE {
            MMU_LEVEL2.0[index % 512].load(Relaxed)
        } else {
            level1
        };
        entry & ATTRIBUTES == NORMAL & ATTRIBUTES
    })
}

fn overlaps(ranges: &[Range], block: Range) -> bool {
    ranges.iter().any(|range| range.overlaps(block))
}

/// Lets EL0 read, write and execute the block around `address`, which EL1 cannot execute from then on.
/// Gives `address`.
pub fn open_to_el0(address: usize) -> usize {
    /// Access permission: EL0 too. And neither of the two execute-never bits.
    const USER: u64 = 1 << 6;
    let level1 = &MMU_LEVEL1.0[address / GIB % 512];
    let entry = if level1.load(Relaxed) & 2 == 0 {
        level1
    } else {
        &MMU_LEVEL2.0[address % GIB / MIB2]
    };
    // A change of permission needs no break before make.
    entry.store((entry.load(Relaxed) | USER) & !NEVER_EXECUTE, Relaxed);
    invalidate();
    address
}

/// Break before make: the old translation is gone before the new one is there.
fn replace(entry: &AtomicU64, descriptor: u64) {
    entry.store(0, Relaxed);
    invalidate();
    entry.store(descriptor, Relaxed);
    dsb();
    isb();
}

/// Switches translation off and on again.
pub fn blink() {
    // SAFETY: every address is mapped to itself, and nothing is loaded or stored while translation is off.
    unsafe {
        asm!(
            "mrs {on}, sctlr_el1",
            "bic {off}, {on}, #1",
            "msr sctlr_el1, {off}",
            "isb",
            "msr sctlr_el1, {on}",
            "isb",
            on = out(reg) _,
            off = out(reg) _,
            options(nostack)
        )
    };
}

/// Address of the level-1 table.
pub fn root() -> usize {
    core::ptr::from_ref(&MMU_LEVEL1).addr()
}

/// Replaces the entry for a GiB that the program does not use by any descriptor at all.
pub fn set_gib(index: usize, descriptor: u64) {
    replace(&MMU_LEVEL1.0[index], descriptor);
}

/// Tables of a CPU's own: level 1, and level 2 for one GiB of it.
static OWN: [[Table; 2]; 2] =
    [const { [const { Table([const { AtomicU64::new(0) }; 512]) }; 2] }; 2];

/// Gives CPU `cpu` (0 or 1), which is this one, tables of its own with the ASID of everybody's: they differ from those only in a GiB
/// that the program does not use, whose first 2 MiB are the block at `block`. Gives the address of that GiB.
pub fn own_tables(cpu: usize, index: usize, block: usize) -> usize {
    let [level1, level2] = &OWN[cpu];
    for (own, common) in level1.0.iter().zip(&MMU_LEVEL1.0) {
        own.store(common.load(Relaxed), Relaxed);
    }
    level2.0[0].store(block as u64 | NORMAL, Relaxed);
    level1.0[index].store(core::ptr::from_ref(level2).addr() as u64 | TABLE, Relaxed);
    // SAFETY: the tables map everything that is in use as the common ones do, and are there as long as the program.
    unsafe {
        asm!(
            "dsb ishst",
            "msr ttbr0_el1, {}",
            "isb",
            in(reg) core::ptr::from_ref(level1).addr(),
            options(nostack)
        )
    };
    invalidate();
    index * GIB
}

/// Maps two pages one behind the other, at the start of a GiB that the program does not use: what is at `first`, which nobody touches there, and
/// the page of RAM at `second`, to be run. Gives the address of the second.
pub fn one_behind_the_other(index: usize, first: usize, second: usize) -> usize {
    /// At level 3: a page.
    const PAGE: u64 = 2;
    let [level2, level3] = &OWN[0];
    level3.0[0].store(first as u64 | DEVICE | PAGE, Relaxed);
    level3.0[1].store(second as u64 | NORMAL | PAGE, Relaxed);
    level2.0[0].store(core::ptr::from_ref(level3).addr() as u64 | TABLE, Relaxed);
    set_gib(index, core::ptr::from_ref(level2).addr() as u64 | TABLE);
    index * GIB + 4096
}

/// Lets instructions be fetched from everywhere, so that what is above EL1 has to say no.
pub fn execute_everywhere() {
    let device_blocks = MMU_LEVEL1.0.iter().chain(MMU_LEVEL2.0.iter());
    for entry in device_blocks {
        // A change of permission needs no break before make.
        entry.store(entry.load(Relaxed) & !NEVER_EXECUTE, Relaxed);
    }
    invalidate();
}

fn invalidate() {
    // SAFETY: drops cached translations; the tables still map everything that is in use.
    unsafe {
        asm!(
            "dsb ishst",
            "tlbi vmalle1",
            "dsb ish",
            "isb",
            options(nostack)
        )
    };
}
