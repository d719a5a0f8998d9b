//! Claim: what sleep costs a vCPU on a pCPU that it shares, or of which it has a part, is a number
//! that anybody can count again.
//!
//! With `figure=N` and nobody else on the pCPU: sleeps until its timer so often. Else two VMs share a
//! pCPU and a page (`phase`). The one with two vCPUs sleeps while the other sleeps too, and has its
//! vCPUs wake each other. Then it is the sleeper beside the other (`beside=1`), which never sleeps
//! from there on and marks what the sleeper does to it.
#![no_std]
#![no_main]

use bulkhead_guests::figures::{self, FIGURES};
use bulkhead_guests::marks::{mark_begin, mark_end};
use bulkhead_guests::shared::{self, Words};
use bulkhead_guests::{Board, cpu, gic, guest, println, sysreg, timer};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

guest!(main = main, irq = on_irq);

/// SGI by which the siblings wake each other.
const SGI: u32 = 1;
/// Sleep that nobody uses.
const SHORT_US: u64 = 5;
/// Sleep after which a sleeper ends the turn of whoever has had the pCPU meanwhile.
const LONG_US: u64 = 1_000;
/// Sleep that ends while the turn of the other is too young to be ended.
const EARLY_US: u64 = 50;
/// From the start of that turn to a moment between the end of this sleep and the end of the turn.
const AFTER_EARLY_US: u64 = 150;
/// Sleep of the other VM while it is to sleep.
const ASLEEP_US: u64 = 200_000;

/// Counter at the vector of the latest interrupt, for each vCPU; 0 while it is awaited.
static ENTERED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// [`ENTERED`] of the sibling when it is about to sleep for the first time.
const READY: u64 = 1;

/// Word of the page: what the other VM does.
const PHASE: usize = 0;
/// Word of the page: how often the sleeper was about to sleep.
const SLEEPS: usize = 1;
/// It sleeps for [`ASLEEP_US`].
const ASLEEP: u64 = 1;
/// It has woken and does not sleep any more.
const AWAKE: u64 = 2;
/// It marks switches: by WFI of the sleeper, and by the sleeper's timer.
const SWITCHES: u64 = 3;
/// It marks timers of the sleeper that end no turn.
const AWAY: u64 = 4;
/// It ends.
const DONE: u64 = 5;

fn main(board: &'static Board) {
    gic::init();
    gic::enable(timer::INTID);
    gic::enable(SGI);
    // Interrupts are taken behind WFI only, so that none slips in between a check and the sleep.
    sysreg::irq_off();
    let Some(page) = board.shared("phase").map(shared::words) else {
        sleeps(board.argument("figure").unwrap_or(0), "server_alone");
        assert!(
            is_stopped(),
            "a turn that begins with the end of a sleep has an end"
        );
        println!("sleep-cost: all seen");
        return;
    };
    if board.argument("beside").is_some() {
        return beside(page);
    }
    cpu::start(1, answer, 0);
    while ENTERED[1].load(Relaxed) != READY || page[PHASE].load(Relaxed) != ASLEEP {
        sleep(SHORT_US);
    }
    sleep(LONG_US);
    sleeps(figures::WFI_SHARED, "timer_sleeper");
    group(figures::SGI_SAME_PCPU, |id| {
        mark_begin(id);
        ENTERED[0].store(0, Relaxed);
        gic::send(SGI, 1 << 1);
        await_interrupt();
        mark_end(id);
    });
    let was_asleep = page[PHASE].load(Relaxed) == ASLEEP;
    while page[PHASE].load(Relaxed) != AWAKE {
        sleep(LONG_US);
    }
    page[PHASE].store(SWITCHES, Relaxed);
    group(figures::VCPU_SWITCH_WFI, |id| {
        arm(LONG_US);
        mark_begin(id);
        await_interrupt();
        mark_end(figures::VCPU_SWITCH_WAKE);
    });
    page[PHASE].store(AWAY, Relaxed);
    group(figures::TIMER_AWAY, |_| {
        page[SLEEPS].fetch_add(1, Relaxed);
        sleep(EARLY_US);
    });
    page[PHASE].store(DONE, Relaxed);
    println!(
        "sleep-cost: {}",
        if was_asleep {
            "all seen"
        } else {
            "the other woke too early"
        }
    );
}

/// Whether a server of half a pCPU that has slept and never sleeps from there on is away.
fn is_stopped() -> bool {
    sleep(SHORT_US);
    let start = timer::now();
    let mut last = start;
    let mut away = 0;
    while last - start < timer::ticks(40 * LONG_US) {
        let now = timer::now();
        if now - last > timer::ticks(LONG_US) {
            away += now - last;
        }
        last = now;
    }
    away > timer::ticks(10 * LONG_US)
}

/// The other VM.
fn beside(page: Words) {
    page[PHASE].store(ASLEEP, Relaxed);
    sleep(ASLEEP_US);
    page[PHASE].store(AWAKE, Relaxed);
    let is = |phase| page[PHASE].load(Relaxed) == phase;
    while is(AWAKE) {}
    while is(SWITCHES) {
        mark_end(figures::VCPU_SWITCH_WFI);
        mark_begin(figures::VCPU_SWITCH_WAKE);
    }
    mark_end(figures::VCPU_SWITCH_WAKE);
    let mut seen = 0;
    while is(AWAY) {
        let sleeps = page[SLEEPS].load(Relaxed);
        if sleeps != seen {
            seen = sleeps;
            mark_begin(figures::TIMER_AWAY);
            timer::spin(AFTER_EARLY_US);
            mark_end(figures::TIMER_AWAY);
        }
    }
}

/// The sibling: sends an SGI for each that it gets.
fn answer(_context: u64) {
    gic::init_cpu();
    gic::enable(SGI);
    ENTERED[1].store(READY, Relaxed);
    loop {
        await_interrupt();
        ENTERED[1].store(0, Relaxed);
        gic::send(SGI, 1);
    }
}

fn group(id: u64, mut operation: impl FnMut(u64)) {
    let known = FIGURES.iter().find(|figure| figure.id == id);
    for _ in 0..known.map_or(0, |figure| figure.operations) {
        operation(id);
    }
}

/// Marks sleeps as the figure `id`, and says by `name` how long it took from the timer to its vector.
fn sleeps(id: u64, name: &str) {
    let (mut min, mut max, mut sum, mut count) = (u64::MAX, 0, 0, 0);
    group(id, |id| {
        mark_begin(id);
        let late = sleep(SHORT_US);
        mark_end(id);
        (min, max) = (min.min(late), max.max(late));
        sum += late;
        count += 1;
    });
    let average = sum / count.max(1);
    println!("latency {name}: ticks min={min} avg={average} max={max}");
}

/// Sleeps until the timer. Returns the ticks from its compare value to the vector.
fn sleep(microseconds: u64) -> u64 {
    let due = arm(microseconds);
    await_interrupt();
    ENTERED[cpu::number()].load(Relaxed).saturating_sub(due)
}

fn arm(microseconds: u64) -> u64 {
    ENTERED[cpu::number()].store(0, Relaxed);
    let due = timer::now() + timer::ticks(microseconds);
    timer::arm(due);
    due
}

fn await_interrupt() {
    let entered = &ENTERED[cpu::number()];
    while entered.load(Relaxed) <= READY {
        sysreg::sleep();
    }
}

fn on_irq(entered: u64) {
    let taken = gic::acknowledge();
    if taken.is_none() {
        return;
    }
    if taken.intid() == timer::INTID {
        timer::disarm();
    }
    ENTERED[cpu::number()].store(entered, Relaxed);
    gic::end(taken);
}
