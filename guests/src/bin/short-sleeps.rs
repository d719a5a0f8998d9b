//! Claim: a vCPU that wakes as often as it can costs its neighbour on the same pCPU no more than
//! its share.
//!
//! With `naps=1` it sleeps for a microsecond at a time, until `to=` milliseconds. Without, it
//! counts how often it goes round a loop in 500 ms beside the other one, and again in 500 ms after
//! that one has ended.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, check, gic, guest, println, sysreg, timer};

guest!(main = main, irq = on_irq);

/// From arming the timer to its interrupt, in microseconds.
const AHEAD_US: u64 = 1;
/// Least rounds of the neighbour beside it, in percent of half of its rounds alone.
const LEAST: u64 = 95;

fn main(board: &'static Board) {
    let milliseconds = |n: u64| timer::frequency() / 1000 * n;
    let end = milliseconds(board.argument("to").unwrap_or(700));
    if board.argument("naps").is_some() {
        gic::init();
        gic::enable(timer::INTID);
        let mut naps = 0u64;
        while timer::now() < end {
            timer::arm(timer::now() + timer::ticks(AHEAD_US));
            sysreg::sleep();
            naps += 1;
        }
        println!("short-sleeps: {naps} naps");
        return;
    }
    let beside = rounds(end - milliseconds(600), end - milliseconds(100));
    let alone = rounds(end + milliseconds(100), end + milliseconds(600));
    println!("short-sleeps: {beside} rounds beside it, {alone} alone");
    check::holds(
        "its part",
        beside * 200 >= alone * LEAST,
        format_args!("{beside} rounds of {alone}"),
    );
    check::done();
}

/// Rounds from one value of the counter to another.
fn rounds(from: u64, to: u64) -> u64 {
    let mut rounds = 0;
    while timer::now() < from {}
    while timer::now() < to {
        rounds += 1;
    }
    rounds
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    timer::disarm();
    gic::end(taken);
}
