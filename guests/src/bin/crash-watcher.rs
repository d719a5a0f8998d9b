//! Claim: a VM that is notified of the crashes of others gets an interrupt, can ask which VM it was
//! and why, is told each time once, and is told of nothing else.
//!
//! The others are `crash-on-demand`; they end when the word in the shared page `orders` says so: at
//! 1 `calm` powers off, at 2 `first` crashes, at 3 `second` crashes and `bitten` is bitten by its
//! watchdog.
#![no_std]
#![no_main]

use bulkhead_abi::call::{CALL_EVENT, CALL_UID, EVENT_NONE, UID};
use bulkhead_guests::{Board, alive, check, gic, guest, power, println, shared, sysreg, timer};
use core::sync::atomic::{AtomicU32, Ordering::*};

guest!(main = main, irq = on_irq);

/// Reasons for the end of a VM (`bulkhead_core::cpu::power::End`).
const CRASH: u64 = 4;
const WATCHDOG: u64 = 5;

static INTID: AtomicU32 = AtomicU32::new(0);
static TOLD: AtomicU32 = AtomicU32::new(0);
static FOREIGN: AtomicU32 = AtomicU32::new(0);

fn main(board: &'static Board) {
    let (Some(orders), Some(intid)) =
        (board.shared("orders").map(shared::words), board.event_intid)
    else {
        return println!(
            "FAIL crash-watcher: it needs a shared page `orders` and an interrupt for events"
        );
    };
    INTID.store(intid, Relaxed);
    gic::init();
    gic::set_edge(intid, true);
    gic::enable(intid);
    sysreg::irq_on();
    let uid = power::hvc(CALL_UID, [0; 7]).map(|word| word as u32);
    check::holds("this is Bulkhead", uid == UID, format_args!("{uid:x?}"));
    nothing("before anything has happened");

    orders[0].store(1, Release);
    timer::spin(300_000);
    nothing("after a VM has powered off");
    check::equal("no interrupt by that", TOLD.load(Relaxed).into(), 0);

    orders[0].store(2, Release);
    sysreg::irq_off();
    while TOLD.load(Relaxed) == 0 {
        // Asleep without a timer: only the event can end it.
        sysreg::sleep();
    }
    sysreg::irq_on();
    let event = power::hvc(CALL_EVENT, [0; 7]);
    expect("the first crash", event, "first", CRASH);
    nothing("when all has been told");

    // Two at once, while the interrupt is closed.
    gic::disable(intid);
    orders[0].store(3, Release);
    let mut events = [[EVENT_NONE; 4]; 2];
    for event in &mut events {
        let end = timer::now() + timer::frequency();
        while event[0] == EVENT_NONE && timer::now() < end {
            *event = power::hvc(CALL_EVENT, [0; 7]);
        }
    }
    // They ended in an order of their own.
    let second = events
        .iter()
        .position(|event| event[3] == CRASH)
        .unwrap_or(0);
    expect("the second crash", events[second], "second", CRASH);
    expect("the bite", events[1 - second], "bitten", WATCHDOG);
    nothing("when both have been told");
    check::equal(
        "a closed interrupt does not come",
        TOLD.load(Relaxed).into(),
        1,
    );
    gic::enable(intid);
    let came = alive::wait(|| TOLD.load(Relaxed) == 2);
    check::holds("it comes when it is open again", came, "it does not");
    timer::spin(1_000);
    check::equal("it comes once", TOLD.load(Relaxed).into(), 2);
    nothing("at the end");
    check::equal("interrupts of nobody", FOREIGN.load(Relaxed).into(), 0);
    check::done();
}

/// Checks that there is no event, however often it asks.
fn nothing(when: &str) {
    let wrong = (0..100).map(|_| power::hvc(CALL_EVENT, [0; 7]));
    let wrong = wrong
        .filter(|answers| *answers != [EVENT_NONE, 0, 0, 0])
        .count();
    check::equal(format_args!("no event {when}"), wrong as u64, 0);
}

fn expect(what: &str, answers: [u64; 4], name: &str, why: u64) {
    let [status, low, high, seen] = answers;
    let mut wanted = [0; 16];
    wanted[..name.len()].copy_from_slice(name.as_bytes());
    let bytes = (u128::from(low) | u128::from(high) << 64).to_le_bytes();
    let right = status == 0 && bytes == wanted && seen == why;
    check::holds(what, right, format_args!("{answers:x?}"));
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if taken.is_none() {
        return;
    }
    let counter = if taken.intid() == INTID.load(Relaxed) {
        &TOLD
    } else {
        &FOREIGN
    };
    counter.fetch_add(1, Relaxed);
    gic::end(taken);
}
