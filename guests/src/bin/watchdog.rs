//! Claim: the emulated SBSA watchdog warns by interrupt, lets itself be refreshed, and ends a VM that does
//! not listen.
//!
//! With `bite=1` (boot arguments) it stops refreshing after its checks, and nothing else comes.
#![no_std]
#![no_main]

use bulkhead_guests::mmio::{read32, read64, write32, write64};
use bulkhead_guests::{Board, alive, check, gic, guest, println, sysreg, timer};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

guest!(main = main, irq = on_irq);

const WCS: usize = 0x000;
const WOR: usize = 0x008;
const WCV: usize = 0x010;
const W_IIDR: usize = 0xfcc;
const WRR: usize = 0x000;
const ENABLE: u32 = 1;
const WS0: u32 = 1 << 1;

static CONTROL: AtomicUsize = AtomicUsize::new(0);
static REFRESH: AtomicUsize = AtomicUsize::new(0);
static INTID: AtomicU32 = AtomicU32::new(0);
static WARNINGS: AtomicU32 = AtomicU32::new(0);

fn main(board: &'static Board) {
    let Some(dog) = board.watchdog else {
        check::holds("there is a watchdog", false, "the device tree has none");
        return check::done();
    };
    CONTROL.store(dog.base, Relaxed);
    REFRESH.store(board.watchdog_refresh, Relaxed);
    INTID.store(dog.intid, Relaxed);
    gic::init();
    gic::enable(dog.intid);
    sysreg::irq_on();
    registers();
    refreshing();
    warning();
    check::done();
    if board.argument("bite") == Some(1) {
        println!("waiting to be bitten");
        set_period(10_000);
        set(WCS, ENABLE);
        loop {
            sysreg::wfi();
        }
    }
}

fn register(offset: usize) -> u32 {
    read32(CONTROL.load(Relaxed) + offset)
}

fn set(offset: usize, value: u32) {
    write32(CONTROL.load(Relaxed) + offset, value);
}

fn refresh() {
    write32(REFRESH.load(Relaxed) + WRR, 1);
}

fn set_period(microseconds: u64) {
    write64(CONTROL.load(Relaxed) + WOR, timer::ticks(microseconds));
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if taken.intid() == INTID.load(Relaxed) {
        // The line stays up until a refresh: off with it here, so that it comes once.
        gic::disable(taken.intid());
        WARNINGS.fetch_add(1, Relaxed);
    }
    if !taken.is_none() {
        gic::end(taken);
    }
}

fn registers() {
    let id = register(W_IIDR);
    check::equal("architecture revision", u64::from(id >> 16 & 15), 1);
    let other = read32(REFRESH.load(Relaxed) + W_IIDR);
    check::equal("both frames have W_IIDR", other.into(), id.into());
    check::equal("off at first", register(WCS).into(), 0);
    write64(CONTROL.load(Relaxed) + WOR, u64::MAX);
    let period = read64(CONTROL.load(Relaxed) + WOR);
    check::equal("a period has 48 bits", period, (1 << 48) - 1);
    set(WOR, 7);
    set(WOR + 4, 0);
    check::equal("WOR by halves", read64(CONTROL.load(Relaxed) + WOR), 7);
    let before = timer::now();
    refresh();
    let compare = read64(CONTROL.load(Relaxed) + WCV);
    let halves = u64::from(register(WCV)) | u64::from(register(WCV + 4)) << 32;
    check::equal("WCV by halves", halves, compare);
    check::holds(
        "WCV is now and the period",
        compare >= before + 7 && compare <= timer::now() + 7,
        format_args!("{compare} after {before}"),
    );
}

/// As long as somebody refreshes it, it is silent.
fn refreshing() {
    set_period(20_000);
    set(WCS, ENABLE);
    for _ in 0..10 {
        timer::spin(5_000);
        refresh();
    }
    check::equal(
        "silent while refreshed",
        register(WCS).into(),
        ENABLE.into(),
    );
    check::equal("no warning", WARNINGS.load(Relaxed).into(), 0);
}

/// A period without a refresh is a warning; a refresh takes it back.
fn warning() {
    let came = alive::wait(|| WARNINGS.load(Relaxed) != 0);
    check::holds("a warning by interrupt", came, "none");
    let status = register(WCS);
    check::equal("WS0 is up", status.into(), (ENABLE | WS0).into());
    refresh();
    let status = register(WCS);
    check::equal("a refresh takes it back", status.into(), ENABLE.into());
    set(WCS, 0);
    gic::enable(INTID.load(Relaxed));
    timer::spin(50_000);
    check::equal("off: no more warnings", WARNINGS.load(Relaxed).into(), 1);
}
