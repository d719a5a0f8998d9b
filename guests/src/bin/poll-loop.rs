//! Claim: a control loop polls once per period for requests to pause or to stop, without an exit.
//!
//! The loop is one of 1 kHz on the virtual timer. The requests are in the shared memory `wishes`;
//! in `answers` are its answer, the periods in which it has worked, and those that it has seen. An
//! instruction takes `instruction=` nanoseconds on the emulator. When it is to stop it prints how
//! many there were, and powers off.
#![no_std]
#![no_main]

use core::sync::atomic::Ordering::Release;

use bulkhead_guests::periods::Periods;
use bulkhead_guests::{Board, check, gic, guest, println, shared, sysreg, timer};
use bulkhead_poll::{Listener, Request, Requests};

guest!(main = main, irq = on_irq);

/// Microseconds.
const PERIOD: u64 = 1000;
/// Most instructions of a look that finds nothing, what is around it included.
const MOST: u64 = 8;
/// Looks at a time, of which the least of so many times counts: the emulator's CPUs take turns.
const LOOKS: u64 = 1024;
const TIMES: usize = 16;

static PERIODS: Periods = Periods::new(PERIOD);

fn main(board: &'static Board) {
    let words = |name| board.shared(name).map(shared::words);
    let (Some(wishes), Some(answers)) = (words("wishes"), words("answers")) else {
        return;
    };
    let mut listener = Listener::new(&wishes[0], &answers[0], Requests::ALL);
    let cost = cost(
        &mut listener,
        board.argument("instruction").unwrap_or(1).max(1),
    );
    check::holds(
        "instructions of a look",
        (1..=MOST).contains(&cost),
        format_args!("{cost}"),
    );
    gic::init();
    gic::enable(timer::INTID);
    PERIODS.begin();
    sysreg::irq_on();
    let (mut paused, mut worked, mut before) = (false, 0, 0);
    loop {
        sysreg::wfi();
        let seen = PERIODS.seen();
        if seen == before {
            continue;
        }
        before = seen;
        match listener.look() {
            None => {}
            Some(Request::Run) => paused = false,
            Some(Request::Pause) => paused = true,
            Some(Request::Stop) => break,
        }
        listener.answer();
        if !paused {
            worked += 1;
        }
        answers[1].store(worked, Release);
        answers[2].store(seen, Release);
    }
    sysreg::irq_off();
    timer::disarm();
    listener.answer();
    println!(
        "poll-loop: cost={cost} periods={} lost={}",
        PERIODS.seen(),
        PERIODS.lost()
    );
    check::done();
}

/// Instructions of a look while nobody wants anything, where one takes `each` nanoseconds.
fn cost(listener: &mut Listener, each: u64) -> u64 {
    let mut least = u64::MAX;
    for _ in 0..TIMES {
        let from = timer::now();
        let found = (0..LOOKS).any(|_| listener.look().is_some());
        let took = timer::nanoseconds(timer::now() - from);
        if !found {
            least = least.min(took);
        }
    }
    least / each / LOOKS
}

/// A period begins.
fn on_irq(entered: u64) {
    PERIODS.on_irq(entered);
}
