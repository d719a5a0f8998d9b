//! Claim: the EL1 physical timer does what the architecture says, whether the VM owns the board's (`own=1` in
//! the boot arguments) or has an emulated one.
#![no_std]
#![no_main]

use bulkhead_guests::timer::physical::{self, ENABLE, IMASK, ISTATUS};
use bulkhead_guests::{Board, alive, check, gic, guest, sysreg, timer};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

guest!(main = main, irq = on_irq);

static TICKS: AtomicU32 = AtomicU32::new(0);
static OTHERS: AtomicU32 = AtomicU32::new(0);
/// Counter in the first line of the handler.
static CAME: AtomicU64 = AtomicU64::new(0);

fn main(board: &'static Board) {
    gic::init();
    gic::enable(physical::INTID);
    registers();
    status(board.argument("own") == Some(1));
    interrupts();
    both_timers();
    check::done();
}

fn on_irq(_entered: u64) {
    let now = physical::now();
    let taken = gic::acknowledge();
    match taken.intid() {
        // Not if the timer's line has fallen in the meantime.
        physical::INTID if physical::control() & ISTATUS != 0 => {
            CAME.store(now, Relaxed);
            physical::set_control(0);
            TICKS.fetch_add(1, Relaxed);
        }
        timer::INTID => {
            timer::disarm();
            OTHERS.fetch_add(1, Relaxed);
        }
        _ => {}
    }
    if !taken.is_none() {
        gic::end(taken);
    }
}

fn registers() {
    physical::set_control(0);
    check::equal("off", physical::control() & ENABLE, 0);
    for value in [0, 0x1234_5678_9abc_def0, u64::MAX] {
        physical::set_compare(value);
        check::equal("CNTP_CVAL_EL0 reads back", physical::compare(), value);
    }
    physical::set_control(u64::MAX);
    check::equal(
        "CNTP_CTL_EL0 has two bits to write",
        physical::control() & !ISTATUS,
        ENABLE | IMASK,
    );
    for (value, distance) in [(1_000_000, 1_000_000), (0xffff_fff0, -16i64 as u64)] {
        let before = physical::now();
        physical::set_value(value);
        let compare = physical::compare();
        let after = physical::now();
        check::holds(
            format_args!("CNTP_TVAL_EL0 {value:#x} is a signed distance"),
            compare.wrapping_sub(before.wrapping_add(distance)) <= after - before,
            format_args!("{compare:#x} from {before:#x}"),
        );
    }
    physical::set_compare(physical::now() + (1 << 40));
    let distance = physical::value();
    check::holds(
        "CNTP_TVAL_EL0 has 32 bits",
        distance <= 0xffff_ffff,
        format_args!("{distance:#x}"),
    );
    physical::set_control(0);
}

/// ISTATUS follows the condition, whatever the mask says.
fn status(own: bool) {
    physical::set_compare(physical::now() + timer::ticks(1_000_000));
    physical::set_control(ENABLE | IMASK);
    check::equal("not due yet", physical::control() & ISTATUS, 0);
    physical::set_compare(physical::now());
    check::equal("due", physical::control(), ENABLE | IMASK | ISTATUS);
    let pending = gic::bit(gic::ISPENDR, physical::INTID);
    check::holds("masked: no interrupt", !pending, "pending");
    physical::set_control(ENABLE);
    let pending = gic::bit(gic::ISPENDR, physical::INTID);
    check::holds("open: pending", pending, "not pending");
    physical::set_compare(physical::now() + timer::ticks(1_000_000));
    // EL2 has taken the board's interrupt, and it stays with the vGIC although its line has fallen.
    if !own {
        let pending = gic::bit(gic::ISPENDR, physical::INTID);
        check::holds("a level falls with its cause", !pending, "pending");
    }
    physical::set_control(0);
}

fn interrupts() {
    sysreg::irq_on();
    for round in 0..20 {
        let due = physical::now() + timer::ticks(200);
        physical::set_compare(due);
        physical::set_control(ENABLE);
        alive::wait(|| TICKS.load(Relaxed) > round);
        let came = CAME.load(Relaxed);
        if came < due {
            check::holds("never early", false, format_args!("{came} before {due}"));
        }
    }
    check::equal("20 interrupts", TICKS.load(Relaxed).into(), 20);
    // Asleep in between: the deadline is EL2's, or the board's.
    sysreg::irq_off();
    for round in 20..25 {
        physical::set_value(timer::ticks(500));
        physical::set_control(ENABLE);
        // An interrupt of EL2 may end the sleep before.
        while TICKS.load(Relaxed) <= round {
            sysreg::sleep();
        }
    }
    check::equal("5 from sleep", TICKS.load(Relaxed).into(), 25);
}

/// The two timers do not know each other.
fn both_timers() {
    gic::enable(timer::INTID);
    sysreg::irq_on();
    TICKS.store(0, Relaxed);
    for round in 0..20 {
        physical::set_value(timer::ticks(100 + u64::from(round) * 10));
        timer::arm(timer::now() + timer::ticks(150));
        physical::set_control(ENABLE);
        alive::wait(|| TICKS.load(Relaxed) > round && OTHERS.load(Relaxed) > round);
    }
    check::equal("physical beside virtual", TICKS.load(Relaxed).into(), 20);
    check::equal("virtual beside physical", OTHERS.load(Relaxed).into(), 20);
    sysreg::irq_off();
}
