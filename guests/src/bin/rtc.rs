//! Claim: the emulated PL031 shows the time of day, lets it be set, and wakes the guest at its alarm.
//!
//! `after=` (boot arguments) is a time, in seconds since 1970, after which it must be.
#![no_std]
#![no_main]

use bulkhead_guests::mmio::{read32, write32};
use bulkhead_guests::{Board, alive, check, gic, guest, sysreg, timer};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

guest!(main = main, irq = on_irq);

const DR: usize = 0x00;
const MR: usize = 0x04;
const LR: usize = 0x08;
const CR: usize = 0x0c;
const IMSC: usize = 0x10;
const RIS: usize = 0x14;
const MIS: usize = 0x18;
const ICR: usize = 0x1c;

static BASE: AtomicUsize = AtomicUsize::new(0);
static INTID: AtomicU32 = AtomicU32::new(0);
static ALARMS: AtomicU32 = AtomicU32::new(0);

fn main(board: &'static Board) {
    let Some(rtc) = board.rtc else {
        check::holds("there is a PL031", false, "the device tree has none");
        return check::done();
    };
    BASE.store(rtc.base, Relaxed);
    INTID.store(rtc.intid, Relaxed);
    gic::init();
    gic::enable(rtc.intid);
    identification();
    time_of_day(board.argument("after").unwrap_or(0));
    setting();
    alarm();
    masked_alarm();
    check::done();
}

fn register(offset: usize) -> u32 {
    read32(BASE.load(Relaxed) + offset)
}

fn set(offset: usize, value: u32) {
    write32(BASE.load(Relaxed) + offset, value);
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if taken.intid() == INTID.load(Relaxed) {
        ALARMS.fetch_add(1, Relaxed);
        set(ICR, 1);
    }
    if !taken.is_none() {
        gic::end(taken);
    }
}

fn identification() {
    let id =
        |first: usize| (0..4).fold(0, |id, n| id | (register(first + 4 * n) & 0xff) << (8 * n));
    check::equal("peripheral id", u64::from(id(0xfe0) & 0xf_ffff), 0x4_1031);
    check::equal("PrimeCell id", id(0xff0).into(), 0xb105_f00d);
    set(CR, 0);
    check::equal("RTCCR stays 1", register(CR).into(), 1);
}

/// Seconds go by as the counter says, whoever looks.
fn time_of_day(after: u64) {
    let first = register(DR);
    check::holds(
        "the time of day is one",
        u64::from(first) > after,
        format_args!("{first}, not after {after}"),
    );
    let before = timer::now();
    timer::spin(2_100_000);
    let seconds = register(DR).wrapping_sub(first);
    let whole = (timer::now() - before) / timer::frequency();
    check::holds(
        "seconds go by",
        u64::from(seconds) >= whole && u64::from(seconds) <= whole + 1,
        format_args!("{seconds} in {whole}"),
    );
}

fn setting() {
    set(LR, 1_000_000_000);
    let time = register(DR);
    check::holds(
        "the time can be set",
        time == 1_000_000_000 || time == 1_000_000_001,
        format_args!("{time}"),
    );
    check::equal("RTCLR reads back", register(LR).into(), 1_000_000_000);
    check::equal("no alarm by that", register(RIS).into(), 0);
}

/// An alarm two seconds ahead wakes a guest that sleeps without any timer.
fn alarm() {
    let start = register(DR);
    set(MR, start + 2);
    check::equal("RTCMR reads back", register(MR).into(), (start + 2).into());
    set(IMSC, 1);
    sysreg::irq_off();
    while ALARMS.load(Relaxed) == 0 {
        sysreg::sleep();
    }
    check::equal(
        "the alarm came in its second",
        register(DR).into(),
        (start + 2).into(),
    );
    check::equal("RTCICR has taken it back", register(RIS).into(), 0);
    sysreg::irq_on();
    timer::spin(1_500_000);
    sysreg::irq_off();
    check::equal("it came once", ALARMS.load(Relaxed).into(), 1);
}

/// Behind its mask an alarm shows in RTCRIS and nowhere else.
fn masked_alarm() {
    set(IMSC, 0);
    set(MR, register(DR) + 1);
    sysreg::irq_on();
    let end = timer::now() + timer::ticks(3_000_000);
    while register(RIS) == 0 && timer::now() < end {}
    check::equal("RTCRIS behind the mask", register(RIS).into(), 1);
    check::equal("RTCMIS behind the mask", register(MIS).into(), 0);
    check::equal(
        "no interrupt behind the mask",
        ALARMS.load(Relaxed).into(),
        1,
    );
    set(IMSC, 1);
    let came = alive::wait(|| ALARMS.load(Relaxed) == 2);
    check::holds("it comes when the mask opens", came, "no interrupt");
    set(IMSC, 0);
}
