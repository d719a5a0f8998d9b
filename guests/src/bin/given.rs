//! Claim: a program that is no kernel finds its device tree where the description puts it (`tree=`, `0`: wherever), and in it the initial RAM
//! disk, whole and outside the program and the tree; one that looks for virtio devices where QEMU's `virt` has them (`probes=1`) finds nobody.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, board::Range, guest, mmio, println};

guest!(main = main);

/// QEMU's `virt` has so many virtio-mmio transports.
const TRANSPORTS: usize = 32;
const FIRST: usize = 0x0a00_0000;
const STEP: usize = 0x200;
/// Archives are made of blocks of so many bytes.
const BLOCK: usize = 512;
/// The first word of each (Virtio 1.2, 4.2.2).
const MAGIC: u32 = u32::from_le_bytes(*b"virt");

fn main(board: &'static Board) {
    let tree = board.tree.unwrap_or(Range { base: 0, size: 0 });
    let wanted = board.argument("tree").unwrap_or(0) as usize;
    say(
        "the tree is in its place",
        wanted == 0 || tree.base == wanted,
        tree.base,
    );
    match board.initrd {
        Some(disk) => {
            let apart = !disk.overlaps(tree) && !disk.overlaps(board.image);
            let inside = board
                .memory
                .iter()
                .any(|memory| memory.base <= disk.base && disk.end() <= memory.end());
            say("the RAM disk is apart", apart && inside, disk.base);
            say("the RAM disk is whole", is_archive(disk), disk.size);
        }
        None => println!("no RAM disk"),
    }
    if board.argument("probes").is_some() {
        let there = (0..TRANSPORTS).filter(|n| {
            let base = FIRST + n * STEP;
            mmio::read32(base) == MAGIC && mmio::read32(base + 8) != 0
        });
        say("no virtio device is found", there.count() == 0, FIRST);
    }
    println!("looked");
}

/// Whether an archive of a program begins and ends there (Documentation/driver-api/early-userspace/buffer-format.rst).
fn is_archive(disk: Range) -> bool {
    let word = |at: usize| mmio::read32(disk.base + at).to_le_bytes();
    let first = disk.size > BLOCK && word(0) == *b"0707" && word(4)[..2] == *b"01";
    // The name of the last entry begins in the middle of a word, TRAILER!!!, with less than a block behind it.
    let end = disk.size / 4;
    let mut last = (end.saturating_sub(BLOCK / 4)..end).map(|n| word(n * 4));
    first && last.any(|word| word == *b"AILE")
}

fn say(what: &str, holds: bool, value: usize) {
    if holds {
        println!("{what}");
    } else {
        println!("FAIL {what}: {value:#x}");
    }
}
