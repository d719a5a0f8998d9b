//! Claim: a server meets every deadline of jobs that fit its budget, whatever other servers and fair VMs of its pCPU do; one
//! that overruns has its budget and no more.
//!
//! `budget=` and `period=` are those of its description, in microseconds. A job is released at each multiple of the period
//! and runs for two thirds of the budget of its own time; it misses if that ends after the next release. (The rest is for EL2: a
//! plan takes an instruction for a nanosecond, and in the tests it takes eight.) `jobs=` says how
//! many. With `overruns=1` it runs without end instead, and looks what it has had of `jobs=` periods; with `least=`, as a fair
//! VM, whether that is at least so many percent.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, check, gic, guest, println, sysreg, timer};

guest!(main = main, irq = on_irq);

/// A jump of the counter from which on somebody else had the pCPU, in microseconds.
const JUMP_US: u64 = 20;
/// Percent of its budgets that a server sees of its own time at least: exits and the loops around a switch are in them, too.
const LEAST: u64 = 95;

fn main(board: &'static Board) {
    let argument = |name| board.argument(name).unwrap_or(0);
    let [budget, period] = ["budget", "period"].map(|name| timer::ticks(argument(name)));
    let jobs = argument("jobs");
    check::holds(
        "a budget, a period and jobs",
        0 < budget && budget < period && jobs > 0,
        format_args!("{budget} of {period} ticks, {jobs} jobs"),
    );
    if let Some(least) = board.argument("least") {
        let all = jobs * period;
        let had = run(u64::MAX, timer::now() + all);
        check::holds(
            "what servers leave",
            had * 100 >= all * least,
            format_args!("{had} of {all} ticks"),
        );
    } else if board.argument("overruns").is_some() {
        overrun(budget, period, jobs);
    } else {
        keep_up(budget, period, jobs);
    }
    check::done();
}

/// Runs until it has had `most` ticks or the counter is at `end`; returns what it has had.
fn run(most: u64, end: u64) -> u64 {
    let jump = timer::ticks(JUMP_US);
    let (mut last, mut had) = (timer::now(), 0);
    while had < most && last < end {
        let now = timer::now();
        had += if now - last > jump { 0 } else { now - last };
        last = now;
    }
    had
}

/// Runs a job in each period.
fn keep_up(budget: u64, period: u64, jobs: u64) {
    gic::init();
    gic::enable(timer::INTID);
    let (mut missed, mut latest) = (0, 0);
    let mut release = timer::now() + period;
    for _ in 0..jobs {
        timer::arm(release);
        while timer::now() < release {
            sysreg::sleep();
        }
        run(budget / 3 * 2, u64::MAX);
        let took = timer::now() - release;
        latest = latest.max(took);
        missed += u64::from(took > period);
        release += period;
    }
    println!(
        "server-jobs: the latest of {jobs} ended after {} ns",
        timer::nanoseconds(latest)
    );
    check::equal("jobs that missed their deadlines", missed, 0);
}

/// Runs without end for as long as `jobs` periods take.
fn overrun(budget: u64, period: u64, jobs: u64) {
    let begin = timer::now();
    let had = run(u64::MAX, begin + jobs * period);
    let due = jobs * budget;
    println!("server-jobs: had {had} ticks of {due}");
    check::holds(
        "its budget and no more",
        had <= due + budget && had * 100 >= due * LEAST,
        format_args!("{had} ticks of {due}"),
    );
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    // One that came for the last job while interrupts were masked says nothing of this one.
    if timer::now() >= timer::compare() {
        timer::disarm();
    }
    gic::end(taken);
}
