//! Claim: a guest that jumps to nowhere gets the abort that a machine without memory there would give,
//! and can go on if it has a handler.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, check, guest, mmu, println, probe, ruin};

guest!(main = main);

fn main(_board: &'static Board) {
    mmu::execute_everywhere();
    println!("crash-jump: jumping to nowhere");
    match probe::execute(ruin::NOWHERE) {
        Err(fault) if fault.is_fetch_external_abort() => {
            check::equal("fault address of the jump", fault.far, ruin::NOWHERE as u64);
            check::equal(
                "return address of the jump",
                fault.elr,
                ruin::NOWHERE as u64,
            );
        }
        Err(fault) => check::holds("jump to nowhere", false, fault),
        Ok(()) => check::holds("jump to nowhere", false, "came back without a fault"),
    }
    check::done();
}
