//! Are interrupts still what they should be? What a program asks itself after it did its worst.

use crate::{check, gic, sysreg, timer};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

static TICKS: AtomicU32 = AtomicU32::new(0);
static SGIS: AtomicU32 = AtomicU32::new(0);

const ROUNDS: u32 = 10;
/// Guest time after which an interrupt counts as lost: a guard against hanging, no measure.
const PATIENCE_US: u64 = 1_000_000;

/// Interrupt handler of programs that have no other.
pub fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if !taken.is_none() {
        note(taken.intid());
        gic::end(taken);
    }
}

/// Notes an interrupt that another handler has taken and will end.
pub fn note(intid: u32) {
    if intid == timer::INTID {
        timer::disarm();
        TICKS.fetch_add(1, Relaxed);
    } else if intid < 16 {
        SGIS.fetch_or(1 << intid, Relaxed);
    }
}

/// SGIs that have arrived since the last call, one bit each.
pub fn take_sgis() -> u32 {
    SGIS.swap(0, Relaxed)
}

/// Timer interrupts that have come.
pub fn ticks() -> u32 {
    TICKS.load(Relaxed)
}

/// SGIs that are never anybody else's: 0 to 7.
pub const LOW_SGIS: u32 = 0xff;

/// Brings the GIC to a known state, then expects ten interrupts of the timer and each of the 16 SGIs.
pub fn check(after: &str) {
    check_some(after, 0xffff);
}

/// [`check`] with these SGIs, a bit for each, and none of the others.
pub fn check_some(after: &str, sgis: u32) {
    let daif = mrs!("daif");
    sysreg::irq_off();
    timer::disarm();
    gic::init();
    gic::enable(timer::INTID);
    (0..16).for_each(gic::enable);
    TICKS.store(0, Relaxed);
    SGIS.store(0, Relaxed);
    sysreg::irq_on();
    for round in 0..ROUNDS {
        timer::arm(timer::now() + timer::ticks(20));
        wait(|| TICKS.load(Relaxed) > round);
    }
    for intid in (0..16).filter(|intid| sgis >> intid & 1 != 0) {
        gic::send_to_self(intid);
        wait(|| SGIS.load(Relaxed) & 1 << intid != 0);
    }
    timer::disarm();
    msr!("daif", daif);
    check::equal(
        format_args!("timer interrupts {after}"),
        TICKS.load(Relaxed).into(),
        ROUNDS.into(),
    );
    check::equal(
        format_args!("SGIs {after}"),
        SGIS.load(Relaxed).into(),
        sgis.into(),
    );
}

/// Waits in a loop until `condition` holds; gives up after a second of guest time.
pub fn wait(condition: impl Fn() -> bool) -> bool {
    let end = timer::now() + timer::ticks(PATIENCE_US);
    while !condition() {
        if timer::now() > end {
            return false;
        }
    }
    true
}
