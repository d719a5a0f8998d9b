//! Claim: no line of a VM is cut that goes on within a quarter of a second, and one that was cut is
//! whole for who reads the console.
//!
//! Prints lines a byte at a time, while other VMs end and have their statistics printed; one of
//! them stands still in the middle, longer than others wait.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, guest, print, timer};

guest!(main = main);

/// Microseconds between two bytes: a line takes less than its turn of a second.
const GAP: u64 = 40_000;
/// Microseconds for which a line stands still, so that it may be cut.
const PAUSE: u64 = 1_500_000;

fn main(_board: &'static Board) {
    for line in ["one in time", "two in time", "three in time"] {
        slowly("PASS ");
        slowly(line);
        print!("\n");
    }
    slowly("PASS a line");
    timer::spin(PAUSE);
    slowly(" with a pause\n");
    timer::spin(PAUSE);
}

fn slowly(text: &str) {
    for byte in text.chars() {
        print!("{byte}");
        timer::spin(GAP);
    }
}
