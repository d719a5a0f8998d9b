//! Claim: a VM whose tick falls due together with those of all other VMs of its pCPU gets its ticks,
//! and EL2 has no long exit for it.
//!
//! Sleeps until each multiple of `every=` microseconds of the counter, `ticks=` times; with `late=`, it wakes no later than so
//! many microseconds behind any of them.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, check, gic, guest, sysreg, timer};

guest!(main = main, irq = on_irq);

fn main(board: &'static Board) {
    let every = timer::ticks(board.argument("every").unwrap_or(100));
    let ticks = board.argument("ticks").unwrap_or(1000);
    gic::init();
    gic::enable(timer::INTID);
    let mut early = 0u64;
    let mut latest = 0;
    for _ in 0..ticks {
        let due = (timer::now() / every + 1) * every;
        timer::arm(due);
        sysreg::sleep();
        // WFI may end early; the interrupt does not come before its time.
        while timer::now() < due {
            early += 1;
            sysreg::sleep();
        }
        latest = latest.max(timer::now() - due);
    }
    check::holds("ticks", early < ticks, early);
    if let Some(late) = board.argument("late") {
        check::holds("each in time", latest <= timer::ticks(late), latest);
    }
    check::done();
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    timer::disarm();
    gic::end(taken);
}
