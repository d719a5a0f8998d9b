//! Companion of `crash-watcher`: ends when and how it is told.
//!
//! `at=` (boot arguments): the word in the shared page `orders` at which it ends; `end=`: 0 for
//! power off, 1 for an exception that no vector takes, 2 for a watchdog that nobody refreshes.
//! Before that it asks for events that are none of its business.
#![no_std]
#![no_main]

use bulkhead_abi::call::{CALL_EVENT, EVENT_NONE};
use bulkhead_guests::mmio::{write32, write64};
use bulkhead_guests::{Board, check, guest, power, println, ruin, shared, sysreg, timer};
use core::sync::atomic::Ordering::Acquire;

guest!(main = main);

/// Registers of the watchdog's control frame.
const WCS: usize = 0x000;
const WOR: usize = 0x008;

fn main(board: &'static Board) {
    let Some(orders) = board.shared("orders").map(shared::words) else {
        return println!("FAIL crash-on-demand: it needs a shared page `orders`");
    };
    nothing("before");
    let at = board.argument("at").unwrap_or(1);
    while orders[0].load(Acquire) < at {
        timer::spin(100);
    }
    nothing("after others have ended");
    check::done();
    match (board.argument("end"), board.watchdog) {
        (Some(1), _) => ruin::crash(),
        (Some(2), Some(dog)) => {
            write64(dog.base + WOR, timer::ticks(1_000));
            write32(dog.base + WCS, 1);
            loop {
                sysreg::wfi();
            }
        }
        _ => {}
    }
}

/// It is told of nobody: the answer is the same whatever happens.
fn nothing(when: &str) {
    let answers = power::hvc(CALL_EVENT, [0; 7]);
    let refused = answers == [EVENT_NONE, 0, 0, 0];
    let words = format_args!("{answers:x?}");
    check::holds(format_args!("no events for it {when}"), refused, words);
}
