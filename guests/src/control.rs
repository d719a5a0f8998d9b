//! The 1 kHz control loop of the demo, its report in the page that VMs share (label `report`), and its end.
//!
//! The loop runs on the virtual timer with absolute compare values, so that lateness never adds up. Its work is done in the
//! interrupt handler. It reports through the page, which costs no exit, until the peer writes the stop word; without that page it runs
//! `periods=` of the boot arguments (5000 if there is none). Then it prints one line.

use crate::{Board, gic, println, shared, sysreg, timer};
use bulkhead_abi::report::{MAGIC, Report, STOP_OFFSET};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering::*, fence};

const PERIODS_PER_SECOND: u64 = 1000;
const DEFAULT_PERIODS: u64 = 5000;

// Counters of the loop. The handler writes, `main` reads: plain loads and stores, no read-modify-write.
static PERIOD: AtomicU64 = AtomicU64::new(0);
static PERIODS: AtomicU64 = AtomicU64::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);
static DOUBLED: AtomicU64 = AtomicU64::new(0);
static LATE_MIN: AtomicU64 = AtomicU64::new(u64::MAX);
static LATE_MAX: AtomicU64 = AtomicU64::new(0);
static LATE_SUM: AtomicU64 = AtomicU64::new(0);
static LATEST: AtomicU64 = AtomicU64::new(0);

/// Runs the loop to its end. `between` is what there is to do between two periods, with interrupts open, such as to look at a polled device.
pub fn run(board: &'static Board, mut between: impl FnMut()) {
    let page = board.shared("report").map(shared::words);
    let limit = board.argument("periods").unwrap_or(DEFAULT_PERIODS);
    let period = timer::frequency() / PERIODS_PER_SECOND;
    PERIOD.store(period, Relaxed);
    gic::init();
    gic::enable(timer::INTID);
    let started = timer::now();
    timer::arm(started + period);
    sysreg::irq_on();
    loop {
        sysreg::wfi();
        between();
        let stop = match page {
            Some(page) => {
                publish(page, started, 0);
                page[STOP_OFFSET / 8].load(Acquire) != 0
            }
            None => PERIODS.load(Relaxed) + LOST.load(Relaxed) >= limit,
        };
        if stop {
            break;
        }
    }
    sysreg::irq_off();
    timer::disarm();
    if let Some(page) = page {
        publish(page, started, 1);
    }
    summary();
}

/// The handler of interrupts, one period: `entered` is the counter at the vector.
pub fn on_irq(entered: u64) {
    let taken = gic::acknowledge();
    let intid = taken.intid();
    if taken.is_none() {
        return;
    }
    let due = timer::compare();
    if intid != timer::INTID || entered < due {
        // The compare value lies in the future: this period has had its interrupt already.
        bump(&DOUBLED, 1);
        gic::end(taken);
        return;
    }
    let late = entered - due;
    let period = PERIOD.load(Relaxed);
    let missed = late / period;
    timer::arm(due + period * (missed + 1));
    bump(&PERIODS, 1);
    bump(&LOST, missed);
    bump(&LATE_SUM, late);
    LATE_MIN.store(LATE_MIN.load(Relaxed).min(late), Relaxed);
    LATE_MAX.store(LATE_MAX.load(Relaxed).max(late), Relaxed);
    LATEST.store(entered, Relaxed);
    gic::end(taken);
}

fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed) + by, Relaxed);
}

/// Writes the report: the sequence is odd while the fields change.
fn publish(page: &[AtomicU64], started: u64, ended: u64) {
    let put = |offset: usize, value: u64| page[offset / 8].store(value, Relaxed);
    let sequence = page[offset_of!(Report, sequence) / 8].load(Relaxed) | 1;
    put(offset_of!(Report, sequence), sequence);
    fence(SeqCst);
    // The handler must not change one counter between the reads of two.
    sysreg::masked(|| {
        put(offset_of!(Report, periods), PERIODS.load(Relaxed));
        put(offset_of!(Report, lost), LOST.load(Relaxed));
        put(offset_of!(Report, doubled), DOUBLED.load(Relaxed));
        put(offset_of!(Report, late_min), LATE_MIN.load(Relaxed));
        put(offset_of!(Report, late_max), LATE_MAX.load(Relaxed));
        put(offset_of!(Report, late_sum), LATE_SUM.load(Relaxed));
        put(offset_of!(Report, latest), LATEST.load(Relaxed));
    });
    put(offset_of!(Report, frequency), timer::frequency());
    put(offset_of!(Report, period), PERIOD.load(Relaxed));
    put(offset_of!(Report, started), started);
    put(offset_of!(Report, ended), ended);
    put(offset_of!(Report, magic), MAGIC);
    fence(SeqCst);
    put(offset_of!(Report, sequence), sequence.wrapping_add(1));
}

fn summary() {
    let periods = PERIODS.load(Relaxed);
    let average = LATE_SUM.load(Relaxed) / periods.max(1);
    println!(
        "control: periods={periods} lost={} doubled={} late_ns min={} avg={} max={}",
        LOST.load(Relaxed),
        DOUBLED.load(Relaxed),
        timer::nanoseconds(if periods == 0 {
            0
        } else {
            LATE_MIN.load(Relaxed)
        }),
        timer::nanoseconds(average),
        timer::nanoseconds(LATE_MAX.load(Relaxed)),
    );
}
