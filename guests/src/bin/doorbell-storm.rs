//! Claim: a doorbell that is rung without end interrupts no more often than the plan says, and a
//! page rings one doorbell, by one kind of access.
//!
//! A VM that rings doorbells rings all of them without end, from `from=` milliseconds for 20, then
//! does everything else to their pages for 5, and spins for 20. One that hears counts the
//! interrupts. With `deaf=1` it masks them while they are rung, and its interrupt is pending once
//! afterwards, or once more where an SPI of the board makes it pending, which comes again while it is active.
#![no_std]
#![no_main]

use bulkhead_guests::mmio::write32;
use bulkhead_guests::probe::{self, Width};
use bulkhead_guests::{Board, check, gic, guest, println, sysreg, timer};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

guest!(main = main, irq = on_irq);

/// Milliseconds of the three parts.
const RINGS: u64 = 20;
const ODD: u64 = 5;
const QUIET: u64 = 20;
/// Margin at the end of a part, in milliseconds: CPUs of an emulator take turns.
const MARGIN: u64 = 2;
/// Microseconds from one interrupt to the next, as the description says.
const APART: u64 = 1000;

static INTID: AtomicU32 = AtomicU32::new(0);
static HEARD: AtomicU64 = AtomicU64::new(0);
static FOREIGN: AtomicU64 = AtomicU64::new(0);

/// The counter at a number of milliseconds.
fn at(milliseconds: u64) -> u64 {
    timer::frequency() / 1000 * milliseconds
}

fn main(board: &'static Board) {
    let from = board.argument("from").unwrap_or(100);
    match board.doorbells.iter().find_map(|bell| bell.intid) {
        Some(intid) => hear(intid, from, board.argument("deaf").is_some()),
        None => ring(board, from),
    }
    check::done();
}

fn ring(board: &'static Board, from: u64) {
    let pages = || board.doorbells.iter().filter_map(|bell| bell.page);
    wait(from);
    let mut rings = 0u64;
    while timer::now() < at(from + RINGS) {
        for page in pages() {
            write32(page, 0);
            rings += 1;
        }
    }
    // What waits is heard before the next part begins.
    wait(from + RINGS + MARGIN);
    let mut wrong = 0;
    let mut loaded = 0;
    while timer::now() < at(from + RINGS + ODD) {
        for page in pages() {
            for width in Width::ALL {
                for offset in [0, 4, 8, 0x7f8, 0xff8] {
                    let read = probe::read(width, page + offset);
                    loaded |= read.unwrap_or(1);
                    if (width, offset) != (Width::Word, 0) {
                        wrong += u64::from(probe::write(width, page + offset, !0).is_err());
                    }
                }
            }
            // Those of others are not there.
            let next = page + 0x1000;
            if pages().all(|other| other != next) {
                let fault = probe::write(Width::Word, next, 1);
                wrong += u64::from(!fault.is_err_and(|fault| fault.is_data_external_abort()));
            }
        }
    }
    wait(from + RINGS + ODD + QUIET);
    println!("doorbell-storm: {rings} rings");
    check::holds("it rings more often than it is heard", rings > 200, rings);
    check::equal("what is read from pages", loaded, 0);
    check::equal("accesses that end otherwise than they should", wrong, 0);
}

fn hear(intid: u32, from: u64, deaf: bool) {
    INTID.store(intid, Relaxed);
    gic::init();
    gic::set_edge(intid, true);
    gic::enable(intid);
    if deaf {
        wait(from + RINGS + ODD);
        sysreg::irq_on();
        wait(from + RINGS + ODD + QUIET);
        let heard = HEARD.load(Relaxed);
        check::holds(
            "rings that it has not heard come once, or twice",
            (1..=2).contains(&heard),
            format_args!("{heard} times"),
        );
    } else {
        sysreg::irq_on();
        wait(from + RINGS + MARGIN);
        let heard = HEARD.load(Relaxed);
        let most = (RINGS + MARGIN) * 1000 / APART + 2;
        check::holds(
            "it hears as often as the plan says",
            heard <= most && heard >= most / 2,
            format_args!("{heard} of {most}"),
        );
        wait(from + RINGS + ODD + QUIET);
        println!("doorbell-storm: {heard} heard");
        check::equal("odd accesses ring nothing", HEARD.load(Relaxed), heard);
    }
    sysreg::irq_off();
    check::equal("interrupts of nobody", FOREIGN.load(Relaxed), 0);
}

fn wait(until: u64) {
    while timer::now() < at(until) {}
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if taken.is_none() {
        return;
    }
    if taken.intid() == INTID.load(Relaxed) {
        HEARD.fetch_add(1, Relaxed);
    } else {
        FOREIGN.fetch_add(1, Relaxed);
    }
    gic::end(taken);
}
