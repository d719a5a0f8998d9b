//! Claim: a guest whose translation tables are where it has no memory is stopped with a report.
//!
//! Every fetch then faults in a table walk, the first instruction of its own vector too. With a shared page
//! `lives` each life has another place: nowhere, the console, the interrupt controller, beyond the IPA space.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, guest, println, ruin, shared, uart};
use core::sync::atomic::Ordering::Relaxed;

guest!(main = main);

fn main(board: &'static Board) {
    let lives = board.shared("lives").map(shared::words);
    let life = lives.map_or(0, |page| page[0].fetch_add(1, Relaxed));
    let places = [ruin::NOWHERE, uart::base(), board.gicd.base, 1 << 39];
    let place = places[life as usize % places.len()];
    println!("crash-tables: translation tables at {place:#x}");
    ruin::tables_at(place);
}
