//! Claim: a guest that cannot take the fault it asked for is stopped with a report.
//!
//! Its vectors are nowhere. A read of an address that it does not have is answered by an injected
//! abort, whose vector it does not have either. Without an end by EL2 the two would take turns forever.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, guest, mmio, println, ruin};

guest!(main = main, mmu = off);

fn main(_board: &'static Board) {
    println!("crash-data: reading from nowhere, with vectors that are nowhere");
    ruin::vectors_at(ruin::NOWHERE);
    let value = mmio::read32(ruin::NOWHERE + 0x10_0000);
    println!("FAIL crash-data: read {value:#x} from nowhere");
}
