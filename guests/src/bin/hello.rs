//! Claim: a guest starts as its description says, prints on its console and can end itself.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, guest, println};

guest!(main = main);

fn main(board: &'static Board) {
    let memory: usize = board.memory.iter().map(|range| range.size).sum();
    println!(
        "hello from EL{}, {} KiB of memory",
        current_el(),
        memory / 1024
    );
}

fn current_el() -> u64 {
    bulkhead_guests::mrs!("currentel") >> 2 & 3
}
