//! Companion of programs that are watched from outside: has the console's input, and prints a line
//! when they have had time to do what they do.
//!
//! Prints `READY` after half a second. For each `w` that it receives it prints `waited` a second
//! later; an `x` ends it. For each `g` it checks that a `gppt-reclaim` VM, with which it shares a
//! page, stands still, and lets it go on.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, guest, println, shared, timer, uart};
use core::sync::atomic::Ordering::Relaxed;

guest!(main = main);

fn main(board: &'static Board) {
    let gate = board.shared("gate").map(shared::words);
    timer::spin(500_000);
    println!("READY");
    loop {
        match uart::get() {
            Some(b'w') => {
                timer::spin(1_000_000);
                println!("waited");
            }
            Some(b'g') => {
                if let Some(gate) = gate {
                    release(gate);
                }
            }
            Some(b'x') => return,
            _ => timer::spin(100),
        }
    }
}

/// Lets a VM go on, once it is no longer held.
fn release(gate: shared::Words) {
    let before = gate[0].load(Relaxed);
    timer::spin(10_000);
    let still = gate[0].load(Relaxed) == before;
    let n = gate[1].fetch_add(1, Relaxed) + 1;
    if still {
        println!("released {n}");
    } else {
        println!("FAIL stands still {n}: it does not");
    }
}
