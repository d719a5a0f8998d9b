//! Claim: a VM gets more of its CPU while it has work, and others have it back when the work is done.
//!
//! It works and rests in turn, each for `work=` and `rest=` milliseconds of its counter, `rounds=` times; while it rests it sleeps. Where
//! the counter jumps by more than 20 µs while it works, another vCPU had the pCPU. Of each spell of work it prints the percentage that it
//! had in the first and in the last fifth: with `follows=1` that of the last has to be greater by a third.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, check, gic, guest, println, sysreg, timer};

guest!(main = main, irq = on_irq);

fn main(board: &'static Board) {
    let milliseconds = |name, otherwise| board.argument(name).unwrap_or(otherwise) * 1000;
    let (work, rest) = (milliseconds("work", 1000), milliseconds("rest", 1000));
    let follows = board.argument("follows").is_some();
    gic::init();
    gic::enable(timer::INTID);
    for _ in 0..board.argument("rounds").unwrap_or(1) {
        let first = busy(work / 5);
        busy(work / 5 * 3);
        let last = busy(work / 5);
        println!("work-rest: had {first}% at first, {last}% at last");
        if follows {
            check::holds(
                "more at last",
                last * 3 >= first * 4,
                format_args!("{first}% at first, {last}% at last"),
            );
        }
        sleep(rest);
    }
    check::done();
}

/// Works for so many microseconds; gives the percentage that it had of them.
fn busy(us: u64) -> u64 {
    let long = timer::ticks(us);
    let worked = timer::work(|passed| passed < long);
    worked.had * 100 / worked.of
}

/// Sleeps for so many microseconds.
fn sleep(us: u64) {
    let end = timer::now() + timer::ticks(us);
    while timer::now() < end {
        timer::arm(end);
        sysreg::sleep();
    }
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if taken.is_none() {
        return;
    }
    timer::disarm();
    gic::end(taken);
}
