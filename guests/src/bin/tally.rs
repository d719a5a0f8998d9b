//! Claim: EL2 counts each exit that a guest causes, once.
//!
//! For `seconds=` of the boot arguments all CPUs have a timer of 1 kHz; at each of its periods CPU
//! 0 makes a hypercall, sends an SGI to each other CPU, and waits for their answers; once a second
//! it prints a line. Before, it maintains its caches by set and way more often than it accesses any other register that traps: each
//! has to be an exit, since others' lines are in those ways. Then it prints how often each of that has happened, and how long it took
//! (`TALLY`).
#![no_std]
#![no_main]

use bulkhead_guests::cpu::MOST;
use bulkhead_guests::{Board, check, cpu, gic, guest, power, print, println, sysreg, timer, uart};
use core::sync::atomic::{AtomicU64, Ordering::*};

guest!(main = main, irq = on_irq);

/// SGI to another CPU, and its answer: that of CPU n is this plus n, since two of the same number would be one.
const ASK: u32 = 1;
const ANSWER: u32 = 8;

/// Times that three instructions by set and way are executed.
const SET_WAY: u64 = 2000;

static PERIOD: AtomicU64 = AtomicU64::new(u64::MAX);
/// Each CPU's own counts: one writer each.
static TIMERS: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
static SENT: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
static ASKED: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
static ANSWERS: AtomicU64 = AtomicU64::new(0);
static FOREIGN: AtomicU64 = AtomicU64::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);
/// The others are to stop.
static OVER: AtomicU64 = AtomicU64::new(0);

fn main(board: &'static Board) {
    let born = timer::now();
    let (cpus, seconds) = (board.cpus, board.argument("seconds").unwrap_or(2));
    let others = cpus as u64 - 1;
    PERIOD.store(timer::frequency() / 1000, Relaxed);
    gic::init();
    (0..SET_WAY).for_each(|_| sysreg::maintain_by_set_and_way());
    for cpu in 1..cpus {
        CALLS.fetch_add(1, Relaxed);
        cpu::start(cpu, other, 0);
    }
    let all_on = cpu::wait(|| ASKED[1..cpus].iter().all(|asked| asked.load(Acquire) != 0));
    check::holds("all CPUs have come", all_on, "one has not");
    CALLS.fetch_add(1, Relaxed);
    let behind = sysreg::behind_a_call();
    check::equal("instructions behind a call", behind, 3);
    begin();
    println!("tally: {cpus} CPUs, {seconds} s");

    let from = timer::now();
    let (mut rounds, mut late) = (0, 0);
    for second in 1..=seconds {
        let until = from + second * timer::frequency();
        while timer::now() < until {
            sysreg::wfi();
            rounds += 1;
            CALLS.fetch_add(1, Relaxed);
            check_version();
            let due = ANSWERS.load(Acquire) + others;
            (1..cpus).for_each(|cpu| send(ASK, cpu));
            late += u64::from(!cpu::wait(|| ANSWERS.load(Acquire) == due));
        }
        println!(
            "tally: {second} s, {rounds} rounds, a line of some length to see whether all of it comes"
        );
    }

    OVER.store(1, Release);
    (1..cpus).for_each(|cpu| send(ASK, cpu));
    let is_off = |cpu| {
        CALLS.fetch_add(1, Relaxed);
        power::affinity_info(cpu::affinity(cpu), 0) == 1
    };
    let all_off = (1..cpus).all(|cpu| cpu::wait(|| is_off(cpu)));
    check::holds("all others are off", all_off, "one is still on");
    end();
    let sum =
        |counts: &[AtomicU64; MOST]| counts.iter().map(|count| count.load(Acquire)).sum::<u64>();
    // One for each CPU tells that it has come.
    let asked = sum(&ASKED) - others;
    let answers = ANSWERS.load(Acquire);
    check::equal("rounds without all answers", late, 0);
    check::equal("SGIs that have arrived", asked + answers, sum(&SENT));
    check::equal("interrupts of nobody", FOREIGN.load(Relaxed), 0);
    // An emulator whose CPUs run in parallel may have less time for each than the clock says.
    check::holds("there was much to count", rounds >= seconds * 20, rounds);
    check::done();
    // Each other CPU has turned itself off, and this one will turn off the machine.
    let calls = CALLS.load(Relaxed) + others + 1;
    let characters = uart::characters();
    print!(
        "TALLY vtimer-irq={} hvc={calls} sysreg~{} sgi={} uart~{} characters={characters} elapsed-us~{}",
        sum(&TIMERS),
        SET_WAY * 3,
        sum(&SENT),
        uart::accesses(),
        (timer::now() - born) * 1_000_000 / timer::frequency(),
    );
    if others == 1 {
        // One at a time; the answers of several CPUs may arrive with one interrupt of EL2's own. A write to the distributor that is
        // more than one exit's work makes a vCPU notify itself.
        print!(" sibling-irq~{}", sum(&SENT));
    }
    println!();
}

fn check_version() {
    if power::psci_version() != 0x1_0001 {
        FOREIGN.fetch_add(1, Relaxed);
    }
}

fn send(intid: u32, cpu: usize) {
    let sent = &SENT[cpu::number()];
    sent.store(sent.load(Relaxed) + 1, Release);
    gic::send(intid, 1 << cpu);
}

/// This CPU's interrupts.
fn begin() {
    for intid in [ASK, timer::INTID].into_iter().chain(ANSWER..16) {
        gic::enable(intid);
    }
    timer::arm(timer::now() + PERIOD.load(Relaxed));
    sysreg::irq_on();
}

/// No more of them; what is on its way arrives.
fn end() {
    timer::disarm();
    timer::spin(1_000);
    sysreg::irq_off();
}

fn other(_context: u64) {
    gic::init_cpu();
    begin();
    ASKED[cpu::number()].fetch_add(1, Release);
    while OVER.load(Acquire) == 0 {
        sysreg::wfi();
    }
    end();
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    let here = cpu::number();
    match taken.intid() {
        timer::INTID => {
            TIMERS[here].fetch_add(1, Relaxed);
            if OVER.load(Relaxed) == 0 {
                timer::arm(timer::now() + PERIOD.load(Relaxed));
            } else {
                timer::disarm();
            }
        }
        ASK => {
            ASKED[here].fetch_add(1, Release);
            send(ANSWER + here as u32, 0);
        }
        ANSWER..16 => _ = ANSWERS.fetch_add(1, AcqRel),
        _ if taken.is_none() => return,
        _ => _ = FOREIGN.fetch_add(1, Relaxed),
    }
    gic::end(taken);
}
