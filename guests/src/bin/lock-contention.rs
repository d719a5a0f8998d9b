//! Claim: two vCPUs of one VM that share a pCPU and contend for a lock get nearly as much done as
//! one alone: a vCPU that waits for a lock does not burn the time of the one that holds it.
//!
//! The work is counted in units, nearly all of each with the lock held. First vCPU 0 works alone
//! for a while, then both for as long. A vCPU that finds the lock taken executes WFE, and yields by
//! a call: QEMU traps no WFE.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use bulkhead_abi::call::CALL_YIELD;
use bulkhead_guests::{Board, check, cpu, guest, power, println, sysreg, timer};

guest!(main = main);

/// Length of each of the two measurements, in microseconds.
const LASTS_US: u64 = 300_000;
/// Steps of a unit with the lock held, and without.
const HELD: u64 = 20_000;
const FREE: u64 = 1_000;
/// Least work of two vCPUs, in percent of the work of one.
const LEAST: u64 = 95;

static LOCK: AtomicBool = AtomicBool::new(false);
/// Number of vCPUs that hold the lock, to notice two at a time.
static INSIDE: AtomicU64 = AtomicU64::new(0);
/// Counter at which work ends.
static END: AtomicU64 = AtomicU64::new(0);
/// Units of each vCPU, and how often two were inside.
static UNITS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static BROKEN: AtomicU64 = AtomicU64::new(0);
static READY: AtomicBool = AtomicBool::new(false);

fn main(_: &'static Board) {
    let alone = measure(|| work(0));
    check::equal("CPU_ON", cpu::start(1, second, 0) as u64, 0);
    cpu::wait(|| READY.load(Acquire));
    let both = measure(|| work(0));
    let [first, second] = both;
    println!(
        "lock-contention: alone {}, then {first} and {second}",
        alone[0]
    );
    let sum = first + second;
    check::holds(
        "work of two",
        sum * 100 >= alone[0] * LEAST,
        format_args!("{sum} units, {} alone", alone[0]),
    );
    for (n, units) in both.into_iter().enumerate() {
        check::holds(
            format_args!("vCPU {n} has its part"),
            units * 10 >= sum,
            format_args!("{units} of {sum}"),
        );
    }
    check::equal("twice inside", BROKEN.load(Relaxed), 0);
    check::done();
}

/// Sets the end and runs `work`; gives the units of both.
fn measure(work: impl Fn()) -> [u64; 2] {
    for units in &UNITS {
        units.store(0, Relaxed);
    }
    END.store(timer::now() + timer::ticks(LASTS_US), Release);
    work();
    [0, 1].map(|n: usize| UNITS[n].load(Acquire))
}

fn second(_: u64) {
    let before = END.load(Acquire);
    READY.store(true, Release);
    cpu::wait(|| END.load(Acquire) != before);
    work(1);
}

fn work(number: usize) {
    while timer::now() < END.load(Acquire) {
        while LOCK.swap(true, Acquire) {
            sysreg::wfe();
            power::hvc(CALL_YIELD, [0; 7]);
        }
        let inside = INSIDE.fetch_add(1, AcqRel);
        BROKEN.fetch_add(inside, Relaxed);
        spend(HELD);
        INSIDE.fetch_sub(1, AcqRel);
        LOCK.store(false, Release);
        sysreg::dsb();
        sysreg::sev();
        spend(FREE);
        UNITS[number].fetch_add(1, AcqRel);
    }
}

fn spend(steps: u64) {
    for _ in 0..steps {
        core::hint::spin_loop();
    }
}
