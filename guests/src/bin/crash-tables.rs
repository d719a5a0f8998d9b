//! Claim: a guest whose translation tables are nowhere is stopped with a report.
//!
//! Every fetch then faults in a table walk, the first instruction of its own vector too.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, guest, println, ruin};

guest!(main = main);

fn main(_board: &'static Board) {
    println!("crash-tables: translation tables that are nowhere");
    ruin::tables_at(ruin::NOWHERE);
}
