//! Claim: a vCPU that shares its pCPU finds its translations and its active interrupts when it runs
//! again.
//!
//! Two vCPUs of a VM on one pCPU have tables of their own, with the same ASID: by the same address
//! each reads its own word, however often the other one ran (QEMU flushes its TLB with every write
//! of TCR_EL1, so that this can fail on hardware only). And a timer interrupt whose handler is
//! preempted is one interrupt: it is active when the vCPU runs again, so that its line, which is
//! still high, brings no second one.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU64, Ordering::*};

use bulkhead_guests::mmio::{read64, write64};
use bulkhead_guests::{Board, check, cpu, gic, guest, mmu, println, sysreg, timer};

guest!(main = main, irq = on_irq);

/// The GiB in which tables differ.
const GIB: usize = 7;
const BLOCK: usize = 2 << 20;
/// Duration of each vCPU's reads, and of a handler, in microseconds: several turns.
const READ_US: u64 = 100_000;
const HANDLER_US: u64 = 15_000;
const TIMERS: u64 = 10;

/// Somewhere in the block of the program; the same place in the block behind it is free.
static WORD: AtomicU64 = AtomicU64::new(0);
static OTHER: Seen = Seen::new();
static HANDLED: AtomicU64 = AtomicU64::new(0);

/// Results of a vCPU's reads.
struct Seen {
    wrong: AtomicU64,
    turns: AtomicU64,
    done: AtomicU64,
}

impl Seen {
    const fn new() -> Self {
        Self {
            wrong: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            done: AtomicU64::new(0),
        }
    }
}

fn main(board: &'static Board) {
    let word = core::ptr::from_ref(&WORD).addr();
    let memory = board.memory.first().expect("there is memory");
    assert!(word % BLOCK + board.image.base / BLOCK * BLOCK == word && board.image.size < BLOCK);
    assert!(word + BLOCK < memory.end());
    WORD.store(1, SeqCst);
    write64(word + BLOCK, 2);
    check::equal("CPU_ON", cpu::start(1, second, 0) as u64, 0);
    let own = Seen::new();
    read(0, &own);
    cpu::wait(|| OTHER.done.load(Acquire) != 0);
    for (n, seen) in [&own, &OTHER].into_iter().enumerate() {
        let (wrong, turns) = (seen.wrong.load(Relaxed), seen.turns.load(Relaxed));
        check::equal(format_args!("words of another by vCPU {n}"), wrong, 0);
        check::holds(
            format_args!("turns of vCPU {n}"),
            turns > 10,
            format_args!("{turns}"),
        );
    }

    gic::init();
    gic::enable(timer::INTID);
    for n in 1..=TIMERS {
        timer::arm(timer::now());
        // Its handler lasts for several turns; what comes twice comes at once, or with the next one.
        sysreg::irq_on();
        cpu::wait(|| HANDLED.load(Relaxed) >= n);
        sysreg::isb();
        sysreg::irq_off();
    }
    println!("vcpu-switch: {} timer interrupts", HANDLED.load(Relaxed));
    check::equal("timer interrupts", HANDLED.load(Relaxed), TIMERS);
    check::done();
}

fn second(_: u64) {
    read(1, &OTHER);
    OTHER.done.store(1, Release);
    // Has its turns until the VM ends.
    loop {
        core::hint::spin_loop();
    }
}

/// Reads by an address that both use: a word of its own.
fn read(number: usize, seen: &Seen) {
    let word = core::ptr::from_ref(&WORD).addr();
    let block = word / BLOCK * BLOCK + number * BLOCK;
    let place = mmu::own_tables(number, GIB, block) + word % BLOCK;
    let expected = number as u64 + 1;
    let end = timer::now() + timer::ticks(READ_US);
    let mut last = timer::now();
    while last < end {
        if read64(place) != expected {
            seen.wrong.fetch_add(1, Relaxed);
        }
        let now = timer::now();
        if now - last > timer::ticks(20) {
            seen.turns.fetch_add(1, Relaxed);
        }
        last = now;
    }
}

fn on_irq(_: u64) {
    let taken = gic::acknowledge();
    if taken.is_none() {
        return;
    }
    HANDLED.fetch_add(1, Relaxed);
    timer::spin(HANDLER_US);
    timer::disarm();
    gic::end(taken);
}
