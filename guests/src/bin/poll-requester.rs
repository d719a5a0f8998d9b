//! Claim: the VM whose requests a control loop polls has it pause, go on and stop, and does nothing
//! else to it, whatever it writes.
//!
//! The other side of `poll-loop`.
#![no_std]
#![no_main]

use core::sync::atomic::Ordering::*;

use bulkhead_guests::{Board, check, guest, shared, timer};
use bulkhead_poll::{Asker, Reply, Request};

guest!(main = main);

/// Longest that an answer may take, in microseconds: some periods.
const PATIENCE: u64 = 200_000;

fn main(board: &'static Board) {
    let words = |name| board.shared(name).map(shared::words);
    let (Some(wishes), Some(answers)) = (words("wishes"), words("answers")) else {
        return;
    };
    let worked = || answers[1].load(Acquire);
    let seen = || answers[2].load(Acquire);
    let runs = || {
        let (worked_before, seen_before) = (worked(), seen());
        timer::spin(20_000);
        (worked() - worked_before, seen() - seen_before)
    };
    wait(|| seen() >= 100);
    let mut asker = Asker::new(&wishes[0], &answers[0]);
    let ask = |asker: &mut Asker, wish| {
        asker.ask(wish);
        wait(|| asker.reply().is_some());
        asker.reply()
    };
    for round in 1..=2 {
        let reply = ask(&mut asker, Request::Pause);
        check::holds(
            format_args!("pause {round}"),
            reply == Some(Reply::Done),
            "no",
        );
        // What it wrote before it answered is here.
        let (some, periods) = runs();
        check::holds(
            format_args!("it stands still {round}"),
            some <= 1 && periods >= 15,
            format_args!("{some} of {periods}"),
        );
        let reply = ask(&mut asker, Request::Run);
        check::holds(
            format_args!("run {round}"),
            reply == Some(Reply::Done),
            "no",
        );
        let (some, periods) = runs();
        check::holds(
            format_args!("it goes on {round}"),
            some >= 15,
            format_args!("{some} of {periods}"),
        );
    }
    // Words that are no wish, as fast as they can be written.
    let end = timer::now() + timer::ticks(30_000);
    let before = (worked(), seen());
    let mut junk = u64::MAX;
    while timer::now() < end {
        junk = junk.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        wishes[0].store(junk | 0x80, Release);
    }
    let (some, periods) = (worked() - before.0, seen() - before.1);
    check::holds(
        "it works under a flood of words",
        some >= 20 && some + 1 >= periods,
        format_args!("{some} of {periods}"),
    );
    let mut asker = Asker::new(&wishes[0], &answers[0]);
    let reply = ask(&mut asker, Request::Stop);
    check::holds("stop", reply == Some(Reply::Done), "no");
    check::done();
}

/// Waits for what the other VM does, but not for ever.
fn wait(done: impl Fn() -> bool) {
    let end = timer::now() + timer::ticks(PATIENCE);
    while !done() && timer::now() < end {}
}
