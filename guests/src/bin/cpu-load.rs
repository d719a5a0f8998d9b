//! Claim: an ordinary VM with more work than CPU time gets its share, and sleeps until there is
//! work.
//!
//! The page that VMs share (label `report`) says when to work, and when to end. While it works it
//! reads the counter without end; where that jumps by more than 20 µs, another vCPU had the pCPU.
//! At the end it prints what it had.
#![no_std]
#![no_main]

use bulkhead_abi::report::{STOP_OFFSET, WORK_OFFSET};
use bulkhead_guests::{Board, gic, guest, println, shared, sysreg, timer};
use core::sync::atomic::Ordering::Acquire;

guest!(main = main, irq = on_irq);

/// Length of a sleep before it looks for work again, in microseconds.
const NAP_US: u64 = 10_000;

fn main(board: &'static Board) {
    let Some(page) = board.shared("report").map(shared::words) else {
        println!("cpu-load: nobody gives work: there is no page `report`");
        return;
    };
    let says = |offset: usize| page[offset / 8].load(Acquire) != 0;
    gic::init();
    gic::enable(timer::INTID);
    sysreg::irq_on();
    while !says(WORK_OFFSET) && !says(STOP_OFFSET) {
        timer::arm(timer::now() + timer::ticks(NAP_US));
        sysreg::wfi();
    }
    sysreg::irq_off();
    timer::disarm();
    let timer::Worked { had, of } = timer::work(|_| !says(STOP_OFFSET));
    let milliseconds = |ticks| timer::nanoseconds(ticks) / 1_000_000;
    println!(
        "cpu-load: had {} ms in {} ms",
        milliseconds(had),
        milliseconds(of)
    );
}

/// Time to look again.
fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if taken.is_none() {
        return;
    }
    timer::disarm();
    gic::end(taken);
}
