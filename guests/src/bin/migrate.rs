//! Claim: a VM that is migrated between pCPUs gets its share of all of them and finds its registers
//! as they were, and loses no interrupt.
//!
//! From `from=` to `to=` milliseconds of the counter it goes round a loop, its timer interrupts it
//! each millisecond, and the rounds go to a page that all such VMs share (label `rounds`), each at
//! its `number=` of `of=`. In the end each must have had as many as the mean, to an eighth (the
//! CPUs of an emulator take turns that are not equally long).
//!
//! With two CPUs the second one works by turns with the first: each tells the other by an SGI, for
//! which that one sleeps, or with `spins=1` only waits. An SGI that does not come ends the test. With
//! `late=` most answers have to come within so many microseconds, whoever has the other's pCPU.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use bulkhead_guests::{Board, check, cpu, gic, guest, println, shared, simd, sysreg, timer};

guest!(main = main, irq = on_irq);

/// Between two interrupts of the timer, in microseconds.
const TICK_US: u64 = 1_000;
/// No two of them are further apart, in microseconds: some turns of all others.
const GAP_US: u64 = 60_000;
/// Rounds of work before the other CPU is woken.
const WORK: u64 = 3_000;
/// SGIs each way of which it tells.
const SOME: u64 = 200;
/// By which the CPUs wake each other.
const WAKE: u32 = 5;

/// Of each CPU: SGIs that came.
static CAME: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static SPINS: AtomicBool = AtomicBool::new(false);
static READY: AtomicBool = AtomicBool::new(false);
static TICKS: AtomicU64 = AtomicU64::new(0);
static LAST: AtomicU64 = AtomicU64::new(0);
static LONGEST: AtomicU64 = AtomicU64::new(0);

fn main(board: &'static Board) {
    let born = timer::now();
    let milliseconds = |name| timer::frequency() / 1000 * board.argument(name).unwrap_or(1);
    let (from, to) = (milliseconds("from"), milliseconds("to"));
    SPINS.store(board.argument("spins").is_some(), Relaxed);
    gic::init();
    gic::enable(timer::INTID);
    gic::enable(WAKE);
    let seed = 0x0123_4567_89ab_cdef_u64.rotate_left(board.argument("number").unwrap_or(0) as u32);
    simd::fill(seed);
    while timer::now() < from {
        core::hint::spin_loop();
    }
    println!("migrate: begins");
    LAST.store(timer::now(), Relaxed);
    timer::arm(timer::now() + timer::ticks(TICK_US));
    if board.cpus > 1 {
        turns(to, board.argument("late"));
    } else {
        alone(board, to);
    }
    check::equal("SIMD registers", simd::damage(seed), 0);
    sysreg::irq_off();
    let (ticks, longest) = (TICKS.load(Relaxed), LONGEST.load(Relaxed));
    println!(
        "migrate: {ticks} ticks, at most {} us apart",
        timer::nanoseconds(longest) / 1000
    );
    // Late as they may be, they come.
    check::holds(
        "ticks",
        longest < timer::ticks(GAP_US) && timer::now() - LAST.load(Relaxed) < timer::ticks(GAP_US),
        format_args!("{ticks} ticks, at most {longest} apart"),
    );
    check::done();
    // EL2 does not count the time between two pCPUs.
    let least = timer::nanoseconds(timer::now() - born) / 4000 * 3;
    println!("TALLY elapsed-us>={least}");
}

fn alone(board: &Board, to: u64) {
    let (number, of) = (board.argument("number"), board.argument("of").unwrap_or(1));
    let middle = timer::now().midpoint(to);
    let mut rounds = 0u64;
    sysreg::irq_on();
    while timer::now() < middle {
        rounds += 1;
    }
    println!("migrate: half");
    while timer::now() < to {
        rounds += 1;
    }
    let Some(page) = board.shared("rounds").map(shared::words) else {
        return println!("migrate: {rounds} rounds");
    };
    page[number.unwrap_or(0) as usize].store(rounds, Release);
    let all = || (0..of as usize).map(|n| page[n].load(Acquire));
    while all().any(|rounds| rounds == 0) {
        core::hint::spin_loop();
    }
    let mean = all().sum::<u64>() / of;
    println!("migrate: {rounds} rounds, {mean} in the mean");
    check::holds(
        "part",
        rounds.abs_diff(mean) * 8 <= mean,
        format_args!("{rounds} rounds, {mean} in the mean"),
    );
}

/// Both CPUs by turns, until the time is over.
fn turns(to: u64, late: Option<u64>) {
    let most = late.map_or(u64::MAX, timer::ticks);
    check::equal("CPU_ON", cpu::start(1, second, 0) as u64, 0);
    // An SGI to a CPU that is not there yet is lost.
    cpu::wait(|| READY.load(Acquire));
    let (mut sent, mut late) = (0, 0);
    while timer::now() < to {
        work();
        sent += 1;
        let asked = timer::now();
        gic::send(WAKE, 1 << 1);
        wait(0, sent);
        late += u64::from(timer::now() - asked > most);
        if sent % SOME == 0 {
            println!("migrate: {sent} SGIs");
        }
    }
    println!("migrate: {sent} SGIs each way, {late} answers late");
    check::holds("answers at once", late * 50 <= sent, late);
    check::equal("SGIs to the second CPU", CAME[1].load(Acquire), sent);
    check::equal("SGIs to the first CPU", CAME[0].load(Acquire), sent);
    check::holds("turns", sent > 100, sent);
}

fn second(_: u64) {
    gic::init_cpu();
    gic::enable(WAKE);
    READY.store(true, Release);
    let mut sent = 0;
    loop {
        wait(1, sent + 1);
        work();
        sent += 1;
        gic::send(WAKE, 1);
    }
}

/// Waits until so many SGIs have come.
fn wait(cpu: usize, count: u64) {
    while CAME[cpu].load(Acquire) < count {
        if !SPINS.load(Relaxed) {
            sysreg::wfi();
        }
        sysreg::irq_on();
        sysreg::isb();
        sysreg::irq_off();
    }
}

fn work() {
    for _ in 0..WORK {
        core::hint::spin_loop();
    }
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if taken.is_none() {
        return;
    }
    if taken.intid() == WAKE {
        CAME[cpu::number()].fetch_add(1, AcqRel);
    } else {
        let now = timer::now();
        TICKS.fetch_add(1, Relaxed);
        LONGEST.fetch_max(now - LAST.swap(now, Relaxed), Relaxed);
        timer::arm(now + timer::ticks(TICK_US));
    }
    gic::end(taken);
}
