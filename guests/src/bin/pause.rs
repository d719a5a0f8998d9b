//! Claim: a VM that is paused loses no interrupt and no time that it should not lose.
//!
//! Says `READY`, and then looks at its counters until the physical one has jumped: it was paused.
//! With `stops=1` (boot arguments) its virtual counter must have stood still meanwhile, else it
//! must not. If there is a second CPU, it looks at the virtual counter too: neither may ever see a
//! time that is before what the other has seen.
//!
//! If it has a PL031, that shows the time of day afterwards, whatever its own time did. If it has a
//! watchdog, that has counted its own time: it warns if the pause counts, and is silent if not.
#![no_std]
#![no_main]

use bulkhead_guests::mmio::{read32, write32, write64};
use bulkhead_guests::timer::physical;
use bulkhead_guests::{Board, alive, check, cpu, gic, guest, println, sysreg, timer};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

guest!(main = main, irq = on_irq);

/// More than any emulator's CPU waits for its turn, less than the pause (microseconds).
const JUMP_US: u64 = 500_000;

/// Period of the watchdog: less than the pause, more than half of it (microseconds).
const DOG_US: u64 = 800_000;
/// Time between two refreshes of the watchdog, in microseconds.
const REFRESH_US: u64 = 300_000;
/// Registers of the watchdog: control and status, period.
const WCS: usize = 0x000;
const WOR: usize = 0x008;
const ENABLE: u32 = 1;
const WS0: u32 = 1 << 1;

static DOG: AtomicU32 = AtomicU32::new(0);
static WARNINGS: AtomicU32 = AtomicU32::new(0);
static VIRTUAL: AtomicU32 = AtomicU32::new(0);
static PHYSICAL: AtomicU32 = AtomicU32::new(0);
/// Latest virtual time that any CPU has seen, and how often one has seen an earlier one after that.
static LATEST: AtomicU64 = AtomicU64::new(0);
static BACK: AtomicU32 = AtomicU32::new(0);
static LOOKS: AtomicU32 = AtomicU32::new(0);
/// Whether interrupts go to `alive`.
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
    if let Some(dog) = board.watchdog {
        DOG.store(dog.intid, Relaxed);
        gic::enable(dog.intid);
        write64(dog.base + WOR, timer::ticks(DOG_US));
        write32(dog.base + WCS, ENABLE);
    }
    let day = board
        .rtc
        .map(|rtc| (rtc, read32(rtc.base), physical::now()));
    println!("READY");
    let (real, shown) = pause(board.watchdog_refresh);
    if board.cpus > 1 {
        let before = LOOKS.load(Relaxed);
        let goes_on = alive::wait(|| LOOKS.load(Relaxed) != before);
        check::holds("the second CPU goes on", goes_on, "it does not");
        check::equal("time never goes back", BACK.load(Relaxed).into(), 0);
    }
    let stops = board.argument("stops") == Some(1);
    if let Some(dog) = board.watchdog {
        watchdog(dog.base, board.watchdog_refresh, stops);
    }
    if let Some((rtc, at_first, then)) = day {
        let seconds = u64::from(read32(rtc.base).wrapping_sub(at_first));
        let whole = (physical::now() - then) / timer::frequency();
        check::holds(
            "the time of day goes on",
            whole >= 1 && (whole..=whole + 1).contains(&seconds),
            format_args!("{seconds} s in {whole} s"),
        );
    }
    println!("pause: {real} us, its own time went on by {shown} us");
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

/// The watchdog after the pause: it follows the VM's own time.
fn watchdog(control: usize, refresh: usize, stops: bool) {
    if !stops {
        let came = alive::wait(|| WARNINGS.load(Relaxed) == 1);
        check::holds("the watchdog warns unasked", came, "it does not");
    }
    let seen = read32(control + WCS);
    let warned = if stops { 0 } else { WS0 };
    check::same(
        "the watchdog has counted its own time",
        seen,
        ENABLE | warned,
    );
    let warnings = u64::from(!stops);
    let came = WARNINGS.load(Relaxed);
    check::equal("warnings of the watchdog", came.into(), warnings);
    write32(refresh, 1);
    check::same("a refresh is in time", read32(control + WCS), ENABLE);
    write32(control + WCS, 0);
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

/// Runs on the second CPU.
fn second(_context: u64) {
    loop {
        look();
        LOOKS.fetch_add(1, Relaxed);
    }
}

/// Waits for a jump of the physical counter, refreshing the watchdog now and then (at this address, if it is not 0);
/// says how far it and the virtual one went, in microseconds.
fn pause(refresh: usize) -> (u64, u64) {
    let jump = timer::ticks(JUMP_US);
    let mut refreshed = physical::now();
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
        // By the counter that was just seen not to jump: the virtual one is read after it, perhaps after the pause.
        // Seldom, so that the pause hardly ever comes between the look and a refresh.
        if refresh != 0 && third.0 - refreshed > timer::ticks(REFRESH_US) {
            refreshed = third.0;
            write32(refresh, 1);
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
        // Its line stays up until a refresh.
        intid if intid == DOG.load(Relaxed) => {
            gic::disable(intid);
            WARNINGS.fetch_add(1, Relaxed);
        }
        _ => {}
    }
    if !taken.is_none() {
        gic::end(taken);
    }
}
