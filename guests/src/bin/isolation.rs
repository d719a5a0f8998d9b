//! Claim: a guest reaches what its device tree names and nothing else.
//!
//! Reads, writes and executes an address in every 2 MiB of the 39-bit space where it has nothing; in each page
//! of the ranges that the boot arguments name (`from0=` and `to0=`, `from1=` and so on, in MiB), which are those
//! where the board keeps its devices, its hypervisor and other guests; and the pages directly before and behind
//! everything that it has. Each access must be answered by a synchronous external abort at that address. What it
//! has, but is not RAM, it cannot execute; shared memory named `readonly` it cannot write.
#![no_std]
#![no_main]

use bulkhead_guests::board::Range;
use bulkhead_guests::probe::{self, Fault, Width};
use bulkhead_guests::{Board, alive, check, guest, mmu, println};

guest!(main = main, irq = alive::on_irq);

const SPACE: usize = 1 << 39;
const STEP: usize = 2 << 20;
const PAGE: usize = 4096;

fn main(board: &'static Board) {
    check::holds(
        "device tree",
        board.tree.is_some(),
        "there is none: nothing says what is ours",
    );
    if board.tree.is_some() {
        mmu::execute_everywhere();
        own_memory(board);
        pages_of_the_board(board);
        read_only(board);
        whole_space(board);
        edges(board);
        not_executable(board);
        alive::check("after the probes");
    }
    check::done();
}

fn mappings(board: &Board) -> impl Iterator<Item = Range> {
    let shared = board.shared.iter().map(|shared| shared.range);
    board
        .memory
        .iter()
        .copied()
        .chain(board.devices.iter().copied())
        .chain(shared)
}

fn is_ours(board: &Board, address: usize) -> bool {
    let page = Range {
        base: address & !(PAGE - 1),
        size: PAGE,
    };
    mappings(board).any(|range| range.overlaps(page))
}

/// Checks that own memory can be read, from its first to its last word.
fn own_memory(board: &Board) {
    for range in &board.memory {
        for address in [range.base, range.end() - 8] {
            let name = format_args!("own memory at {address:#x}");
            check::report(name, probe::read(Width::Double, address).map(drop));
        }
    }
}

/// Reads, writes and executes an address that is not ours, and checks the fault of each.
fn touch(address: usize) -> Result<(), Wrong> {
    let read = probe::read(Width::Word, address).map(drop);
    judge(address, read, Fault::is_data_external_abort)?;
    let write = probe::write(Width::Word, address, 0);
    judge(address, write, Fault::is_data_external_abort)?;
    let fetch = probe::execute(address);
    judge(address, fetch, Fault::is_fetch_external_abort)
}

fn whole_space(board: &Board) {
    let mut probed = 0u32;
    let mut verdict = Ok(());
    for base in (0..SPACE).step_by(STEP) {
        // Not always the first page of a block: the offset moves with the address.
        let address = base + (base / STEP * 0x1_3000) % STEP;
        if !is_ours(board, address) {
            probed += 1;
            verdict = verdict.and(touch(address));
        }
    }
    println!("isolation: {probed} of {} blocks probed", SPACE / STEP);
    check::report("2 MiB steps over 39 bits", verdict);
}

/// Every page of the board where it is not ours: memory of EL2 and of others, registers.
fn pages_of_the_board(board: &Board) {
    let ranges = [("from0", "to0"), ("from1", "to1")];
    for (from, to) in ranges.map(|(from, to)| (board.argument(from), board.argument(to))) {
        let (Some(from), Some(to)) = (from, to) else {
            continue;
        };
        let (from, to) = ((from as usize) << 20, (to as usize) << 20);
        let mut probed = 0u32;
        let mut verdict = Ok(());
        for page in (from..to).step_by(PAGE) {
            if !is_ours(board, page) {
                probed += 1;
                verdict = verdict.and(touch(page + page / PAGE * 8 % PAGE));
            }
        }
        let enough = probed as usize > (to - from) / PAGE / 2;
        check::holds(
            format_args!("most pages from {from:#x} are others'"),
            enough,
            probed,
        );
        check::report(
            format_args!("{probed} pages from {from:#x} to {to:#x}"),
            verdict,
        );
    }
}

/// Checks that read-only shared memory keeps its words.
fn read_only(board: &Board) {
    let Some(range) = board.shared("readonly") else {
        return;
    };
    let mut verdict = Ok(());
    for address in (range.base..range.end()).step_by(8) {
        let before = probe::read(Width::Double, address);
        let write = probe::write(Width::Double, address, !0);
        verdict = verdict.and(judge(address, write, Fault::is_data_external_abort));
        let after = probe::read(Width::Double, address);
        if before.is_err() || before != after {
            let seen = before.err().or(after.err());
            verdict = verdict.and(Err(Wrong { address, seen }));
        }
    }
    check::report("shared memory that is read-only", verdict);
}

fn edges(board: &Board) {
    for range in mappings(board) {
        let before = range.base.wrapping_sub(PAGE);
        let behind = range.end().next_multiple_of(PAGE);
        for page in [before, behind] {
            if page >= SPACE || is_ours(board, page) {
                continue;
            }
            let mut verdict = Ok(());
            for address in [page, page + PAGE - 8] {
                for width in Width::ALL {
                    let read = probe::read(width, address).map(drop);
                    verdict = verdict.and(judge(address, read, Fault::is_data_external_abort));
                    let write = probe::write(width, address, 0);
                    verdict = verdict.and(judge(address, write, Fault::is_data_external_abort));
                }
                let fetch = probe::execute(address);
                verdict = verdict.and(judge(address, fetch, Fault::is_fetch_external_abort));
            }
            check::report(
                format_args!("page {page:#x} next to {:#x}", range.base),
                verdict,
            );
        }
    }
}

/// Memory that is shared, and devices, are not executable, whatever the guest's own tables say.
fn not_executable(board: &Board) {
    let shared = board.shared.iter().map(|shared| shared.range);
    for range in shared.chain(board.devices.iter().copied()) {
        let fetch = probe::execute(range.base);
        let verdict = judge(range.base, fetch, |fault| fault.class() == 0x21);
        check::report(format_args!("fetch from {:#x}", range.base), verdict);
    }
}

/// The access must have failed, in the right way, at this address.
fn judge(address: usize, result: Result<(), Fault>, right: fn(Fault) -> bool) -> Result<(), Wrong> {
    match result {
        Err(fault) if right(fault) && fault.far == address as u64 => Ok(()),
        other => Err(Wrong {
            address,
            seen: other.err(),
        }),
    }
}

/// An access that was not refused as it should be.
struct Wrong {
    address: usize,
    seen: Option<Fault>,
}

impl core::fmt::Display for Wrong {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.seen {
            Some(fault) => write!(f, "at {:#x}: {fault}", self.address),
            None => write!(f, "at {:#x}: no fault", self.address),
        }
    }
}
