//! Claim: a guest whose exception vector is nowhere is stopped with a report.
//!
//! The exception is the guest's own business (an undefined instruction): the first thing that EL2 sees
//! is a fetch from a vector that the guest does not have.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, guest, println, ruin};

guest!(main = main, mmu = off);

fn main(_board: &'static Board) {
    println!("crash-vector: an undefined instruction, with vectors that are nowhere");
    ruin::vectors_at(ruin::NOWHERE);
    ruin::undefined();
    println!("FAIL crash-vector: went on after an undefined instruction");
}
