//! Claim: a vCPU with a limit of accesses to memory has as many in each period and no more; what it has had too much when it was stopped is taken
//! off the next.
//!
//! The emulator counts no accesses but time, in which each instruction takes as much: `accesses=` says how many instructions that is in each
//! `period=` (microseconds), and `periods=` for how many it runs: without end, in a loop whose instructions are known. With `least=` it shares its pCPU, and is
//! to have that part of its accesses, in percent; without it all of them, and each row of passes is one period's. It sleeps `asleep=` periods in the middle,
//! which gives it nothing more afterwards. With `late=` it does something else ([`across`]).
#![no_std]
#![no_main]

use bulkhead_guests::counted::{self, PASS};
use bulkhead_guests::{Board, check, gic, guest, println, sysreg, timer};

guest!(main = main, irq = on_irq);

/// A jump of the counter from which on it did not run, in microseconds.
const JUMP_US: u64 = 20;

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    timer::disarm();
    gic::end(taken);
}

fn main(board: &'static Board) {
    let argument = |name| board.argument(name).unwrap_or(0);
    let (accesses, periods) = (argument("accesses"), argument("periods"));
    let period = timer::ticks(argument("period"));
    if let Some(late) = board.argument("late") {
        across(accesses, period, late);
        return check::done();
    }
    check::holds(
        "accesses in periods",
        accesses > 0 && period > 0 && periods > 0,
        format_args!("{accesses} in {period} ticks, {periods} times"),
    );
    let seen = run(timer::now() + periods * period);
    let due = accesses * periods;
    println!(
        "accesses: {} of {due}, rows of {} to {}",
        seen.instructions, seen.least, seen.most
    );
    // It begins and ends within a period, and has instructions of its own around the loop.
    let within = |part: u64, of: u64| part.abs_diff(of) <= of / 100;
    match board.argument("least") {
        None => {
            check::holds(
                "all that it may",
                within(seen.instructions, due),
                seen.instructions,
            );
            check::holds("no row is longer", within(seen.most, accesses), seen.most);
            check::holds(
                "no row is shorter",
                within(seen.least, accesses),
                seen.least,
            );
        }
        Some(least) => {
            let most = due + due / 100;
            check::holds(
                "no more than it may",
                seen.instructions <= most,
                seen.instructions,
            );
            let enough = seen.instructions * 100 >= due * least;
            check::holds("not much less", enough, seen.instructions);
        }
    }
    if let Some(asleep) = board.argument("asleep") {
        after_sleep(accesses, asleep * period, period);
    }
    check::done();
}

/// Wakes after `late` percent of a period, and looks how much comes in a row: what is left of that period's time, if the accesses are enough for it, and
/// the accesses of the next one. Periods begin at multiples of their length.
fn across(accesses: u64, period: u64, late: u64) {
    const ROWS: u64 = 50;
    gic::init();
    gic::enable(timer::INTID);
    let jump = timer::ticks(JUMP_US);
    let (mut least, mut most) = (u64::MAX, 0);
    for _ in 0..ROWS {
        let begin = (timer::now() / period + 3) * period;
        sleep_until(begin + period * late / 100);
        let row = counted::row(jump, begin + 3 * period);
        // The part of the first period, as instructions: they fill the time.
        let rate = row.passes * PASS * 1000 / (row.end - row.begin);
        let before = (begin + period - row.begin) * rate / 1000;
        let next = (row.passes * PASS).saturating_sub(before);
        (least, most) = (least.min(next), most.max(next));
    }
    println!("accesses: {least} to {most} of the next period");
    let within = |part: u64| part.abs_diff(accesses) <= accesses / 50;
    check::holds("no row has more of the next period", within(most), most);
    check::holds("no row has less of the next period", within(least), least);
}

fn sleep_until(end: u64) {
    timer::arm(end);
    while timer::now() < end {
        sysreg::sleep();
    }
}

/// What it has had.
#[derive(Clone, Copy, Debug)]
struct Seen {
    instructions: u64,
    /// Of a row, but the first and the last.
    least: u64,
    most: u64,
}

fn run(until: u64) -> Seen {
    let jump = timer::ticks(JUMP_US);
    let mut seen = Seen {
        instructions: 0,
        least: u64::MAX,
        most: 0,
    };
    let mut is_first = true;
    loop {
        let row = counted::row(jump, until);
        let instructions = row.passes * PASS;
        seen.instructions += instructions;
        if row.over >= until {
            return seen;
        }
        if !is_first {
            seen.least = seen.least.min(instructions);
            seen.most = seen.most.max(instructions);
        }
        is_first = false;
    }
}

/// Sleeps, and looks whether it has more in as many periods afterwards than their accesses.
fn after_sleep(accesses: u64, sleep: u64, period: u64) {
    gic::init();
    gic::enable(timer::INTID);
    sleep_until(timer::now() + sleep);
    let seen = run(timer::now() + sleep);
    // The window begins and ends within a period.
    let most = accesses * (sleep / period + 1);
    check::holds(
        "sleep is not saved up",
        seen.instructions <= most,
        seen.instructions,
    );
}
