//! Claim: what a guest says comes whole and in order, also where the console is slow.
//!
//! Says that it waits, waits for a byte, and says `lines=` lines, each with its number; it does nothing else.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, check, guest, println, timer, uart};

guest!(main = main);

fn main(board: &'static Board) {
    let lines = board.argument("lines").unwrap_or(100);
    println!("long-output: waits");
    while uart::get().is_none() {
        timer::spin(100);
    }
    for n in 0..lines {
        println!("line {n:04} the quick brown fox jumps over the lazy dog");
    }
    check::holds("all lines sent", true, lines);
    check::done();
}
