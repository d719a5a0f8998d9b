//! Claim: a guest that closes all its masks and spins forever takes its own CPU and nothing else.
//! Companion of `victim`.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, guest, println, ruin};

guest!(main = main);

fn main(_board: &'static Board) {
    println!("crash-spin: spinning with all masks closed");
    ruin::spin();
}
