//! Claim: doorbells pass a token round, and no ring is lost, doubled or taken by another VM.
//!
//! Each VM hears one doorbell and rings another, and reads and writes the shared memory of the same
//! names. The one with `first=1` writes 1 and rings; a VM that hears writes what it has read and
//! rings on; the first one adds 1, until `rounds=`. So each interrupt comes with a number of its
//! own, and there are as many as rounds. In the end it rings some more at once, as fast as it can,
//! and the last number has to arrive all the same.
//!
//! One that hears and rings nothing writes what it has read into the memory `answer`: all its work
//! is in the handler. One that rings and hears nothing waits for that each time.
#![no_std]
#![no_main]

use bulkhead_guests::board::{Doorbell, Range};
use bulkhead_guests::mmio::write32;
use bulkhead_guests::{Board, check, gic, guest, println, shared, sysreg, timer};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

guest!(main = main, irq = on_irq);

/// Words of shared memory: the token, whether all before are ready.
const TOKEN: usize = 0;
const READY: usize = 1;
/// Milliseconds without a token after which one is lost; `patience=` says other ones.
const PATIENCE: u64 = 500;
/// Rings at once.
const BURST: u64 = 50;

static INTID: AtomicU32 = AtomicU32::new(0);
static PAGE: AtomicUsize = AtomicUsize::new(0);
/// Addresses of the memory that the token is read from and written to; 0 for none.
static FROM: AtomicUsize = AtomicUsize::new(0);
static TO: AtomicUsize = AtomicUsize::new(0);
static FIRST: AtomicBool = AtomicBool::new(false);
static ROUNDS: AtomicU64 = AtomicU64::new(0);
/// The last token.
static LAST: AtomicU64 = AtomicU64::new(0);
static HEARD: AtomicU64 = AtomicU64::new(0);
/// Interrupts without a new token, or with one too far.
static STALE: AtomicU64 = AtomicU64::new(0);
static SKIPPED: AtomicU64 = AtomicU64::new(0);
/// INTID of the last interrupt that is none of its own.
static FOREIGN: AtomicU32 = AtomicU32::new(0);

fn word(base: &AtomicUsize, word: usize) -> Option<&'static AtomicU64> {
    let base = base.load(Relaxed);
    let size = 4096;
    (base != 0).then(|| &shared::words(Range { base, size })[word])
}

fn main(board: &'static Board) {
    let first = board.argument("first").is_some();
    let rounds = board.argument("rounds").unwrap_or(100);
    let memory = |bell: &Doorbell| board.shared(bell.label).map_or(0, |range| range.base);
    let patience = board.argument("patience").unwrap_or(PATIENCE);
    let answer = board.shared("answer").map_or(0, |range| range.base);
    TO.store(answer, Relaxed);
    if let Some(rung) = board.doorbells.iter().find(|bell| bell.page.is_some()) {
        PAGE.store(rung.page.unwrap_or(0), Relaxed);
        TO.store(memory(rung), Relaxed);
    }
    let mut bells = board.doorbells.iter();
    let Some(heard) = bells.find(|bell| bell.intid.is_some()) else {
        FROM.store(answer, Relaxed);
        return call(rounds);
    };
    let intid = heard.intid.unwrap_or(0);
    INTID.store(intid, Relaxed);
    FROM.store(memory(heard), Relaxed);
    FIRST.store(first, Relaxed);
    ROUNDS.store(rounds, Relaxed);
    gic::init();
    gic::set_edge(intid, true);
    gic::enable(intid);
    gic::enable(timer::INTID);
    let (Some(from), Some(ready)) = (word(&FROM, READY), word(&TO, READY)) else {
        return println!("FAIL doorbell: its memory is not there");
    };
    if first {
        ready.store(1, Release);
    }
    while from.load(Acquire) == 0 {}
    ready.store(1, Release);
    if first {
        send(1);
    }
    let end = rounds + if first { 0 } else { BURST };
    let (mut before, mut since) = (0, timer::now());
    while LAST.load(Relaxed) < end {
        let last = LAST.load(Relaxed);
        if last != before {
            (before, since) = (last, timer::now());
        } else if timer::now() - since > timer::frequency() / 1000 * patience {
            break;
        }
        timer::arm(timer::now() + timer::frequency() / 100);
        sysreg::sleep();
    }
    timer::disarm();
    check::equal("the last token", LAST.load(Relaxed), end);
    if first {
        for token in rounds + 1..=rounds + BURST {
            send(token);
        }
    }
    sysreg::irq_on();
    let until = timer::now() + timer::frequency() / 1000 * patience;
    while LAST.load(Relaxed) < rounds + BURST && timer::now() < until {}
    // What is one too many comes now.
    let until = timer::now() + timer::frequency() / 50;
    while timer::now() < until {}
    sysreg::irq_off();
    let heard = HEARD.load(Relaxed);
    println!("doorbell: {heard} heard by INTID {intid}");
    if first {
        // What the burst has brought round.
        check::equal("the end of the burst", LAST.load(Relaxed), rounds + BURST);
    }
    check::holds(
        "as many as tokens, and fewer in the burst",
        heard > rounds && heard <= rounds + BURST,
        format_args!("{heard} for {rounds} and {BURST}"),
    );
    check::equal("without a new token", STALE.load(Relaxed), 0);
    check::equal("tokens left out", SKIPPED.load(Relaxed), 0);
    check::same("interrupts of nobody", FOREIGN.load(Relaxed), 0);
    check::done();
}

/// Rings, and waits each time until it was heard.
fn call(rounds: u64) {
    let (Some(from), Some(ready)) = (word(&FROM, READY), word(&TO, READY)) else {
        return println!("FAIL doorbell: its memory is not there");
    };
    ready.store(1, Release);
    while from.load(Acquire) == 0 {}
    let answered = |token: u64| {
        let until = timer::now() + timer::frequency() / 1000 * PATIENCE;
        let seen = || word(&FROM, TOKEN).map_or(0, |answer| answer.load(Acquire));
        while seen() < token && timer::now() < until {}
        seen()
    };
    let mut late = 0;
    for token in 1..=rounds {
        send(token);
        if answered(token) != token {
            late = token;
            break;
        }
    }
    check::equal("rings that were not heard", late, 0);
    for token in rounds + 1..=rounds + BURST {
        send(token);
    }
    check::equal(
        "the end of the burst",
        answered(rounds + BURST),
        rounds + BURST,
    );
    check::done();
}

/// Writes the token and rings.
fn send(token: u64) {
    if let Some(to) = word(&TO, TOKEN) {
        to.store(token, Release);
    }
    let page = PAGE.load(Relaxed);
    if page != 0 {
        sysreg::dsb();
        write32(page, token as u32);
    }
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if taken.is_none() {
        return;
    }
    if taken.intid() == INTID.load(Relaxed) {
        hear();
    } else if taken.intid() == timer::INTID {
        timer::disarm();
    } else {
        FOREIGN.store(taken.intid(), Relaxed);
    }
    gic::end(taken);
}

fn hear() {
    HEARD.fetch_add(1, Relaxed);
    let token = word(&FROM, TOKEN).map_or(0, |from| from.load(Acquire));
    let last = LAST.swap(token, Relaxed);
    let rounds = ROUNDS.load(Relaxed);
    if token == last {
        // In the burst a ring may come with the token of the one before; a Linux rings once when it opens its line.
        STALE.fetch_add(u64::from(token != 0 && token <= rounds), Relaxed);
        return;
    }
    if token != last + 1 && token <= rounds {
        SKIPPED.fetch_add(1, Relaxed);
    }
    if !FIRST.load(Relaxed) {
        send(token);
    } else if token < rounds {
        send(token + 1);
    }
}
