//! Claim: an interrupt of a GPPT VM comes at the same instruction as without a hypervisor.
//!
//! Takes 1000 interrupts of each kind and prints when they came: ticks of the counter after the
//! compare value, or after the device's mask was opened. The same program runs on the bare board.
//! Nothing is printed between the marks. Then it accesses its GIC, of which EL2 filters a part.
#![no_std]
#![no_main]

use bulkhead_guests::figures::{self, OPERATIONS};
use bulkhead_guests::marks::{mark_begin, mark_end};
use bulkhead_guests::mmio::{read32, write32};
use bulkhead_guests::pl061::{GPIOIE, GPIOIEV, GPIOIS, PL061, PL061_INTID};
use bulkhead_guests::{Board, gic, guest, println, sysreg, timer};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

guest!(main = main, irq = on_irq);

/// From arming the timer to its interrupt: long enough for the CPU to be asleep or in its loop.
const AHEAD_US: u64 = 5;

/// SGI that it sends to itself.
const SGI: u32 = 1;

/// Counter at the vector of the latest interrupt; 0 while it is awaited.
static ENTERED: AtomicU64 = AtomicU64::new(0);

fn main(_board: &'static Board) {
    gic::init();
    gic::enable(timer::INTID);
    gic::enable(PL061_INTID);
    write32(PL061 + GPIOIEV, 0);
    write32(PL061 + GPIOIS, 1);
    let kinds = [
        (figures::VTIMER_IRQ, "vtimer_irq", spinning as fn() -> u64),
        (figures::VTIMER_IRQ_WFI, "vtimer_irq_wfi", asleep),
        (figures::HW_IRQ, "hw_irq", device),
    ];
    let seen = kinds.map(|(id, name, interrupt)| (name, measure(id, interrupt)));
    accesses();
    for (name, [min, sum, max]) in seen {
        println!("late {name}: ticks min={min} sum={sum} max={max}");
    }
    println!("irq-latency: {OPERATIONS} interrupts each");
}

/// Accesses to the GIC, a pair of marks around each. All interrupts are masked.
fn accesses() {
    sysreg::irq_off();
    gic::enable(SGI);
    let typer = gic::distributor() + gic::TYPER;
    let [off, on] = [gic::ICENABLER, gic::ISENABLER].map(|bank| gic::word(bank, PL061_INTID));
    let bit = 1 << (PL061_INTID % 32);
    for _ in 0..OPERATIONS {
        marked(figures::GPPT_TYPER, || _ = read32(typer));
        write32(off, bit);
        marked(figures::GPPT_ENABLE, || write32(on, bit));
        marked(figures::GPPT_SGI, || gic::send_to_self(SGI));
        // Taken here, and not by the vector.
        gic::end(gic::acknowledge());
    }
}

fn marked(id: u64, operation: impl FnOnce()) {
    mark_begin(id);
    operation();
    mark_end(id);
}

/// Least, sum and most of all latencies.
fn measure(id: u64, interrupt: fn() -> u64) -> [u64; 3] {
    let [mut min, mut sum, mut max] = [u64::MAX, 0, 0];
    mark_begin(id);
    for _ in 0..OPERATIONS {
        ENTERED.store(0, Relaxed);
        let late = interrupt();
        min = min.min(late);
        sum += late;
        max = max.max(late);
    }
    mark_end(id);
    [min, sum, max]
}

/// The timer, in a loop.
fn spinning() -> u64 {
    sysreg::irq_on();
    let due = timer::now() + timer::ticks(AHEAD_US);
    timer::arm(due);
    while ENTERED.load(Relaxed) == 0 {}
    ENTERED.load(Relaxed) - due
}

/// The timer, in WFI.
fn asleep() -> u64 {
    // Masked, so that the interrupt cannot slip in between the check and the sleep.
    sysreg::irq_off();
    let due = timer::now() + timer::ticks(AHEAD_US);
    timer::arm(due);
    while ENTERED.load(Relaxed) == 0 {
        sysreg::sleep();
    }
    ENTERED.load(Relaxed) - due
}

/// A device whose line is up as soon as its mask is open.
fn device() -> u64 {
    sysreg::irq_on();
    let opened = timer::now();
    write32(PL061 + GPIOIE, 1);
    while ENTERED.load(Relaxed) == 0 {}
    ENTERED.load(Relaxed) - opened
}

fn on_irq(entered: u64) {
    let taken = gic::acknowledge();
    match taken.intid() {
        timer::INTID => timer::disarm(),
        PL061_INTID => write32(PL061 + GPIOIE, 0),
        _ => return,
    }
    gic::end(taken);
    ENTERED.store(entered, Relaxed);
}
