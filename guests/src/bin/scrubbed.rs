//! Claim: the memory that a machine starts with holds nothing: its RAM but for the program and the device tree, and what it
//! shares with others, read before anybody has written there.
#![no_std]
#![no_main]

use bulkhead_guests::probe::{self, Width};
use bulkhead_guests::{Board, check, guest, memory};

guest!(main = main);

fn main(board: &'static Board) {
    let (mut pages, mut set) = (0u64, None);
    memory::free_pages(board, |page| {
        pages += 1;
        set = set.or(page.first_set());
    });
    check::holds("there is RAM to look at", pages > 500, pages);
    let at = set.unwrap_or(0);
    check::holds("the rest of RAM is zero", set.is_none(), at as u64);
    for shared in &board.shared {
        let mut words = (shared.range.base..shared.range.end()).step_by(8);
        let set = words.find(|address| probe::read(Width::Double, *address) != Ok(0));
        let name = format_args!("shared memory {} is zero", shared.label);
        check::holds(name, set.is_none(), set.unwrap_or(0) as u64);
    }
    check::done();
}
