//! Claim: a vCPU that shares its pCPU gets the share that its weight or its cap says, and finds its
//! registers as they were each time it runs again.
//!
//! From `from=` to `to=` milliseconds of the counter it reads the counter without end. Where it
//! jumps by more than 20 µs, another vCPU had the pCPU. `part=` and `of=` are its share and all
//! shares; of the time from the start of its first whole turn to that of its last, what it had must
//! be within 1 % of what it should have. What EL2 tells it as stolen must be what it missed, within
//! 1 %. With `second=1` vCPU 1 does all that, and vCPU 0 is off.
#![no_std]
#![no_main]

use bulkhead_guests::mmio::read64;
use bulkhead_guests::{Board, check, cpu, guest, power, println, simd, timer};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

guest!(main = main);

/// A jump from which on somebody else had the pCPU, in microseconds.
const JUMP_US: u64 = 20;

/// `from`, `to`, `part` and `of`.
static ARGUMENTS: [AtomicU64; 4] = [const { AtomicU64::new(1) }; 4];

fn main(board: &'static Board) {
    for (place, name) in ARGUMENTS.iter().zip(["from", "to", "part", "of"]) {
        place.store(board.argument(name).unwrap_or(1), Relaxed);
    }
    if board.argument("second") == Some(1) {
        check::equal("CPU_ON", cpu::start(1, second, 0) as u64, 0);
        cpu::off();
    }
    measure();
}

fn second(_context: u64) {
    measure();
    power::off();
}

fn measure() {
    let [from, to, part, of] = ARGUMENTS.each_ref().map(|place| place.load(Relaxed));
    let milliseconds = |n: u64| timer::frequency() / 1000 * n;
    let (from, to) = (milliseconds(from), milliseconds(to));
    let seed = 0x0123_4567_89ab_cdef_u64.rotate_left(part as u32 * 8);
    let jump = timer::ticks(JUMP_US);

    while timer::now() < from {
        core::hint::spin_loop();
    }
    simd::fill(seed);
    let told = stolen_time();
    let mut last = timer::now();
    // Start of the first whole turn; start of the latest, and what it had had until then.
    let (mut first, mut latest, mut had) = (None, last, 0);
    let mut stolen = 0;
    let (mut away, mut turns, mut longest, mut damage) = (0, 0, 0, 0);
    while last < to {
        let now = timer::now();
        let passed = now - last;
        if passed > jump {
            let start = *first.get_or_insert_with(|| {
                stolen = told();
                now
            });
            away += if start == now { 0 } else { passed };
            had = now - start - away;
            latest = now;
            turns += 1;
            longest = longest.max(passed);
            damage |= simd::damage(seed);
        }
        last = now;
    }
    let elapsed = latest - first.unwrap_or(latest);
    let due = elapsed * part / of;
    println!(
        "cpu-share: {had} of {elapsed} ticks, due {due}, {turns} turns, longest without {} ns",
        timer::nanoseconds(longest)
    );
    stolen = told() - stolen;
    let missed = timer::nanoseconds(away);
    check::holds(
        "stolen time",
        stolen.abs_diff(missed) * 100 <= missed,
        format_args!("told {stolen} ns, missed {missed} ns"),
    );
    check::equal("SIMD registers", damage, 0);
    check::holds(
        "share",
        had.abs_diff(due) * 100 <= due,
        format_args!("{had} of {due} ticks"),
    );
    check::holds("turns", turns > 10, format_args!("{turns} turns"));
    check::done();
}

/// PV_TIME_FEATURES and PV_TIME_ST (DEN0057A, 3).
const PV_TIME: [u32; 2] = [0xc500_0020, 0xc500_0021];
/// SMCCC_ARCH_FEATURES.
const ARCH_FEATURES: u32 = 0x8000_0001;

/// Finds where it is told stolen time, as Linux does; gives what reads it.
fn stolen_time() -> impl Fn() -> u64 {
    let ask = |function, x1: u32| power::hvc(function, [u64::from(x1), 0, 0, 0, 0, 0, 0])[0];
    check::equal(
        "PV_TIME_FEATURES is known",
        ask(ARCH_FEATURES, PV_TIME[0]),
        0,
    );
    check::equal("PV_TIME_ST is there", ask(PV_TIME[0], PV_TIME[1]), 0);
    let place = ask(PV_TIME[1], 0) as usize;
    check::equal("aligned", place as u64 % 64, 0);
    check::equal("revision and attributes", read64(place), 0);
    move || read64(place + 8)
}
