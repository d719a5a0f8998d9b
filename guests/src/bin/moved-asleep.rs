//! Claim: a vCPU that is moved to another pCPU in its sleep is woken by its timer at its time, and
//! its interrupts and registers are its own from its first instruction there.
//!
//! It sleeps `naps=` times for 200 ms. After each it does what an interrupt needs of the pCPU: an
//! SGI to itself, a timer that is due at once.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bulkhead_guests::{Board, check, gic, guest, println, simd, sysreg, timer};

guest!(main = main, irq = on_irq);

/// Length of a sleep, in microseconds.
const NAP_US: u64 = 200_000;
/// An interrupt is no later than this, in microseconds: some turns of who else has the pCPU.
const LATE_US: u64 = 30_000;
const SELF: u32 = 3;
const SEED: u64 = 0x0f1e_2d3c_4b5a_6978;

static TICKS: AtomicU64 = AtomicU64::new(0);
static SGIS: AtomicU64 = AtomicU64::new(0);

fn main(board: &'static Board) {
    let naps = board.argument("naps").unwrap_or(1);
    gic::init();
    gic::enable(timer::INTID);
    gic::enable(SELF);
    simd::fill(SEED);
    for nap in 1..=naps {
        println!("moved-asleep: nap {nap}");
        let due = timer::now() + timer::ticks(NAP_US);
        timer::arm(due);
        sleep_until(&TICKS, 2 * nap - 1);
        let late = timer::now() - due;
        check::holds("woken at its time", late < timer::ticks(LATE_US), late);
        gic::send(SELF, 1);
        sleep_until(&SGIS, nap);
        timer::arm(timer::now());
        sleep_until(&TICKS, 2 * nap);
    }
    check::equal("SGIs", SGIS.load(Relaxed), naps);
    check::equal("SIMD registers", simd::damage(SEED), 0);
    check::done();
}

/// Sleeps until so many interrupts have come.
fn sleep_until(came: &AtomicU64, count: u64) {
    while came.load(Relaxed) < count {
        sysreg::sleep();
    }
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    match taken.intid() {
        timer::INTID => {
            timer::disarm();
            TICKS.fetch_add(1, Relaxed);
        }
        SELF => {
            SGIS.fetch_add(1, Relaxed);
        }
        _ => return,
    }
    gic::end(taken);
}
