//! Companion of `dump-manager`: known values in a page of its memory and in all general-purpose registers, with which it ends as `way=` (boot
//! arguments) says: 0 by a read of an address that it does not have, which its vectors cannot take; 1 by an undefined instruction, likewise; 2 by
//! power off; 3 not at all; 4 not either, and asleep.
#![no_std]
#![no_main]

use bulkhead_guests::dumped::{self, MAGIC, PAGE_WORDS};
use bulkhead_guests::{Board, guest, println};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

guest!(main = main);

#[repr(C, align(4096))]
struct Page([AtomicU64; PAGE_WORDS]);

static PAGE: Page = Page([const { AtomicU64::new(0) }; PAGE_WORDS]);

fn main(board: &'static Board) {
    // Not in the image: what is found has been written.
    for (n, word) in (0..).zip(&PAGE.0) {
        word.store(MAGIC.wrapping_mul(2 * n + 1), Relaxed);
    }
    // Nobody here reads it, but somebody else does.
    core::hint::black_box(&PAGE);
    let way = board.argument("way").unwrap_or(0);
    println!("dumped: the page is written");
    dumped::end(way)
}
