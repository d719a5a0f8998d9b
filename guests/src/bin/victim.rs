//! Claim: nothing happens to a guest while a hostile neighbour runs.
//!
//! Fills its free RAM and its system registers with patterns, runs a 1 kHz timer loop for `periods=`
//! of the boot arguments (2000 if there is none), and looks whether everything is as it was. Lateness
//! is printed, not judged: an emulator makes its own. With `strict=1` no period may be lost either, which
//! an emulator grants to its first CPU only. With `late=` no interrupt may be taken by more microseconds behind its time, which is for a clock
//! that counts instructions.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, check, gic, guest, memory, mrs, msr, println, sysreg, timer};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

guest!(main = main, irq = on_irq);

const SEED: u64 = 0x5eed_0f7e_57ed_ca5e;
const DEFAULT_PERIODS: u64 = 2000;

static PERIOD: AtomicU64 = AtomicU64::new(0);
static TAKEN: AtomicU64 = AtomicU64::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);
static EARLY: AtomicU64 = AtomicU64::new(0);
static FOREIGN: AtomicU64 = AtomicU64::new(0);
static LATE_MAX: AtomicU64 = AtomicU64::new(0);

fn main(board: &'static Board) {
    let mut pages = 0;
    memory::free_pages(board, |page| {
        page.fill(SEED);
        pages += 1;
    });
    msr!("tpidr_el1", SEED);
    msr!("tpidr_el0", !SEED);
    msr!("tpidrro_el0", SEED.rotate_left(8));
    gic::init();
    gic::enable(timer::INTID);
    let before = registers();

    let wanted = board.argument("periods").unwrap_or(DEFAULT_PERIODS);
    let period = timer::frequency() / 1000;
    PERIOD.store(period, Relaxed);
    println!("victim: {pages} pages filled, {wanted} periods");
    let started = timer::now();
    timer::arm(started + period);
    sysreg::irq_on();
    while TAKEN.load(Relaxed) + LOST.load(Relaxed) < wanted {
        sysreg::wfi();
    }
    sysreg::irq_off();
    let latest = timer::compare() - period;
    timer::disarm();

    let mut damage = None;
    memory::free_pages(board, |page| damage = damage.or(page.damage(SEED)));
    let (address, value) = damage.unwrap_or_default();
    check::holds(
        "memory",
        damage.is_none(),
        format_args!("{value:#x} at {address:#x}"),
    );
    for ((name, old), (_, new)) in before.into_iter().zip(registers()) {
        check::equal(name, new, old);
    }
    let periods = TAKEN.load(Relaxed) + LOST.load(Relaxed);
    check::equal(
        "periods agree with the counter",
        (latest - started) / period,
        periods,
    );
    check::equal("interrupts before their time", EARLY.load(Relaxed), 0);
    check::equal("interrupts of nobody", FOREIGN.load(Relaxed), 0);
    if board.argument("strict").is_some() {
        check::equal("periods lost", LOST.load(Relaxed), 0);
    }
    if let Some(most) = board.argument("late") {
        let late = timer::nanoseconds(LATE_MAX.load(Relaxed)) / 1000;
        check::holds(
            "in time",
            late <= most,
            format_args!("late by {late} of {most} us"),
        );
    }
    println!(
        "victim: lost={} late_ns max={}",
        LOST.load(Relaxed),
        timer::nanoseconds(LATE_MAX.load(Relaxed))
    );
    check::done();
}

fn registers() -> [(&'static str, u64); 10] {
    [
        ("TPIDR_EL1", mrs!("tpidr_el1")),
        ("TPIDR_EL0", mrs!("tpidr_el0")),
        ("TPIDRRO_EL0", mrs!("tpidrro_el0")),
        ("SCTLR_EL1", mrs!("sctlr_el1")),
        ("TCR_EL1", mrs!("tcr_el1")),
        ("TTBR0_EL1", mrs!("ttbr0_el1")),
        ("MAIR_EL1", mrs!("mair_el1")),
        ("VBAR_EL1", mrs!("vbar_el1")),
        ("CPACR_EL1", mrs!("cpacr_el1")),
        ("priority mask", gic::mask().into()),
    ]
}

fn on_irq(entered: u64) {
    let taken = gic::acknowledge();
    let intid = taken.intid();
    if taken.is_none() {
        return;
    }
    let due = timer::compare();
    if intid != timer::INTID {
        FOREIGN.fetch_add(1, Relaxed);
    } else if entered < due {
        EARLY.fetch_add(1, Relaxed);
    } else {
        let (late, period) = (entered - due, PERIOD.load(Relaxed));
        timer::arm(due + period * (late / period + 1));
        TAKEN.fetch_add(1, Relaxed);
        LOST.fetch_add(late / period, Relaxed);
        LATE_MAX.fetch_max(late, Relaxed);
    }
    gic::end(taken);
}
