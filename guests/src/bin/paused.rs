//! Claim: a VM that is paused loses no interrupt and no time that it should not lose.
//!
//! Says `READY`, and then looks at its counters until the physical one has jumped: it was paused. With
//! `stops=1` (boot arguments) its virtual counter must have stood still meanwhile, else it must not. If there is
//! a second CPU, it looks at the virtual counter too: neither may ever see a time that is before what the
//! other has seen.
#![no_std]
#![no_main]

use bulkhead_guests::timer::physical;
use bulkhead_guests::{Board, alive, check, cpu, gic, guest, println, sysreg, timer};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

guest!(main = main, irq = on_irq);

/// More than any emulator's CPU waits for its turn, less than the pause (microseconds).
const JUMP_US: u64 = 500_000;

static VIRTUAL: AtomicU32 = AtomicU32::new(0);
static PHYSICAL: AtomicU32 = AtomicU32::new(0);
/// Latest virtual time that any CPU has seen, and how often one has seen an earlier one after that.
static LATEST: AtomicU64 = AtomicU64::new(0);
static BACK: AtomicU32 = AtomicU32::new(0);
static LOOKS: AtomicU32 = AtomicU32::new(0);
/// What comes now is for `alive`.
static OVER: AtomicBool = AtomicBool::new(false);

fn main(board: &'static Board) {
    gic::init();
    gic::enable(timer::INTID);
    gic::enable(physical::INTID);
    sysreg::irq_on();
    // Due while it is paused by the physical counter; by the virtual one only if that goes on.
    timer::arm(timer::now() + timer::ticks(700_000));
    physical::set_value(timer::ticks(700_000));
    physical::set_control(physical::ENABLE);
    if board.cpus > 1 {
        let answer = cpu::start(1, second, 0);
        check::equal("the second CPU starts", answer as u64, 0);
    }
    println!("READY");
    let (real, shown) = pause();
    if board.cpus > 1 {
        let before = LOOKS.load(Relaxed);
        let goes_on = alive::wait(|| LOOKS.load(Relaxed) != before);
        check::holds("the second CPU goes on", goes_on, "it does not");
        check::equal("time never goes back", BACK.load(Relaxed).into(), 0);
    }
    let stops = board.argument("stops") == Some(1);
    println!("paused: {real} us, its own time went on by {shown} us");
    if stops {
        check::holds("its time stood still", shown < JUMP_US / 5, "it went on");
        check::equal("its timer is not due", VIRTUAL.load(Relaxed).into(), 0);
    } else {
        check::holds("its time went on", shown + 1 >= real, "it stood still");
        check::equal("its timer was due", VIRTUAL.load(Relaxed).into(), 1);
    }
    let came = alive::wait(|| PHYSICAL.load(Relaxed) == 1);
    check::holds("its physical timer was due", came, "no interrupt");
    let came = alive::wait(|| VIRTUAL.load(Relaxed) == 1);
    check::holds("its virtual timer comes", came, "no interrupt");
    OVER.store(true, Relaxed);
    alive::check("after a pause");
    check::done();
}

/// The virtual counter, which must not be before what any CPU has seen.
fn look() -> u64 {
    let seen = LATEST.load(SeqCst);
    let now = timer::now();
    if now < seen {
        BACK.fetch_add(1, Relaxed);
    }
    LATEST.fetch_max(now, SeqCst);
    now
}

/// What the second CPU does.
fn second(_context: u64) {
    loop {
        look();
        LOOKS.fetch_add(1, Relaxed);
    }
}

/// Waits for a jump of the physical counter; says how far it and the virtual one went, in microseconds.
fn pause() -> (u64, u64) {
    let jump = timer::ticks(JUMP_US);
    let both = || (physical::now(), look());
    let (mut first, mut second) = (both(), both());
    loop {
        let third = both();
        if third.0 - second.0 > jump {
            // The interrupt of a timer that was due is taken before this.
            timer::spin(1_000);
            let microseconds = |ticks| timer::nanoseconds(ticks) / 1_000;
            // It may have been between the two counters of the second look.
            return (
                microseconds(third.0 - first.0),
                microseconds(third.1 - first.1),
            );
        }
        (first, second) = (second, third);
    }
}

fn on_irq(entered: u64) {
    if OVER.load(Relaxed) {
        return alive::on_irq(entered);
    }
    let taken = gic::acknowledge();
    match taken.intid() {
        timer::INTID => {
            timer::disarm();
            VIRTUAL.fetch_add(1, Relaxed);
        }
        physical::INTID => {
            physical::set_control(0);
            PHYSICAL.fetch_add(1, Relaxed);
        }
        _ => {}
    }
    if !taken.is_none() {
        gic::end(taken);
    }
}
