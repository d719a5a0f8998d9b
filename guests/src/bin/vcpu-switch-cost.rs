//! Claim: the cost of a switch between two vCPUs of a pCPU is a number that anybody can count
//! again.
//!
//! VMs that never sleep share a pCPU. Each sees by a jump of the counter that the others have had
//! their turns. The one with `measures=N` marks so many of them as `figures.rs` says of figure N and
//! ends; another ends when it has been alone for a while, or with `turns=N` after so many: a
//! server is away also when it is alone. With `timer=N` its timer is armed meanwhile, for so many
//! seconds: that has to be kept while it is away.
#![no_std]
#![no_main]

use bulkhead_guests::figures::FIGURES;
use bulkhead_guests::marks::{mark_begin, mark_end};
use bulkhead_guests::{Board, guest, println, timer};

guest!(main = main);

/// A jump from which on the other had its turn, in microseconds.
const JUMP_US: u64 = 500;
/// More than any turn.
const ALONE_US: u64 = 20_000;

fn main(board: &'static Board) {
    let jump = timer::ticks(JUMP_US);
    if let Some(seconds) = board.argument("timer") {
        timer::arm(timer::now() + seconds * timer::frequency());
    }
    wait_for_jump(jump, u64::MAX);
    if let Some(id) = board.argument("measures") {
        let known = FIGURES.iter().find(|figure| figure.id == id);
        let operations = known.map_or(0, |figure| figure.operations);
        mark_begin(id);
        for _ in 0..operations {
            wait_for_jump(jump, u64::MAX);
        }
        mark_end(id);
        println!("vcpu-switch-cost: all seen");
    } else {
        let turns = board.argument("turns").unwrap_or(u64::MAX);
        (0..turns).all(|_| wait_for_jump(jump, timer::ticks(ALONE_US)));
    }
}

/// Waits until somebody else has had the pCPU; `false` if nobody had for so long.
fn wait_for_jump(jump: u64, at_most: u64) -> bool {
    let start = timer::now();
    let mut last = start;
    loop {
        let now = timer::now();
        if now - last > jump {
            return true;
        }
        if now - start > at_most {
            return false;
        }
        last = now;
    }
}
