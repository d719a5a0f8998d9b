//! Claim: what an operation costs at EL2 is a number that anybody can count again.
//!
//! Runs each operation of `figures.rs` 1000 times between two marks. Nothing is printed between them.
//! At the end it prints what it saw itself: latencies in ticks of the counter, to compare with a run
//! without a hypervisor.
#![no_std]
#![no_main]

use bulkhead_guests::figures::{self, OPERATIONS};
use bulkhead_guests::marks::{mark_begin, mark_end};
use bulkhead_guests::mmio::{read32, write32};
use bulkhead_guests::{Board, gic, guest, power, println, sysreg, timer, uart};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

guest!(main = main, irq = on_irq);

/// SGI that is sent to ourselves.
const SGI: u32 = 1;
/// From arming the timer to its interrupt: long enough for the guest to be asleep or in its loop.
const AHEAD_US: u64 = 5;

/// Counter at the vector of the latest interrupt; 0 while it is awaited.
static ENTERED: AtomicU64 = AtomicU64::new(0);

/// Latencies of one group.
struct Latency {
    name: &'static str,
    min: u64,
    max: u64,
    sum: u64,
}

fn main(_board: &'static Board) {
    gic::init();
    gic::enable(timer::INTID);
    gic::enable(SGI);
    sysreg::irq_on();
    let isenabler1 = gic::distributor() + gic::ISENABLER + 4;
    // The console's own SPI: the vGIC has it, and its mask in the PL011 stays closed.
    write32(isenabler1, 1 << 1);
    let enabled = read32(isenabler1);

    group(figures::HVC_NULL, || _ = power::psci_version());
    let spinning = latency(figures::VTIMER_IRQ, "vtimer_irq", || timer_interrupt(false));
    let asleep = latency(figures::VTIMER_IRQ_WFI, "vtimer_irq_wfi", || {
        timer_interrupt(true)
    });
    let typer = gic::distributor() + gic::TYPER;
    group(figures::GICD_TYPER_READ, || _ = read32(typer));
    group(figures::GICD_ISENABLER_READ, || _ = read32(isenabler1));
    group(figures::GICD_ISENABLER_WRITE, || {
        write32(isenabler1, enabled)
    });
    if uart::base() != 0 {
        let flags = uart::base() + uart::FR;
        group(figures::UART_READ, || _ = read32(flags));
    }
    let sgi = latency(figures::SGI_SELF, "sgi_self", sgi_to_self);

    for Latency {
        name,
        min,
        max,
        sum,
    } in [spinning, asleep, sgi]
    {
        let average = sum / u64::from(OPERATIONS);
        println!("latency {name}: ticks min={min} avg={average} max={max}");
    }
    println!(
        "micro: {OPERATIONS} operations each, {} ticks per second",
        timer::frequency()
    );
}

fn group(id: u64, mut operation: impl FnMut()) {
    mark_begin(id);
    for _ in 0..OPERATIONS {
        operation();
    }
    mark_end(id);
}

fn latency(id: u64, name: &'static str, mut operation: impl FnMut() -> u64) -> Latency {
    let mut seen = Latency {
        name,
        min: u64::MAX,
        max: 0,
        sum: 0,
    };
    group(id, || {
        let ticks = operation();
        seen.min = seen.min.min(ticks);
        seen.max = seen.max.max(ticks);
        seen.sum += ticks;
    });
    seen
}

/// From the compare value to the vector.
fn timer_interrupt(sleep: bool) -> u64 {
    let due = timer::now() + timer::ticks(AHEAD_US);
    ENTERED.store(0, Relaxed);
    if sleep {
        // Masked, so that the interrupt cannot slip in between the check and the sleep.
        sysreg::irq_off();
        timer::arm(due);
        while ENTERED.load(Relaxed) == 0 {
            sysreg::wfi();
            sysreg::irq_on();
            sysreg::isb();
            sysreg::irq_off();
        }
        sysreg::irq_on();
    } else {
        timer::arm(due);
        while ENTERED.load(Relaxed) == 0 {}
    }
    ENTERED.load(Relaxed).saturating_sub(due)
}

/// From the counter just before the SGI to the vector.
fn sgi_to_self() -> u64 {
    ENTERED.store(0, Relaxed);
    let sent = timer::now();
    gic::send_to_self(SGI);
    while ENTERED.load(Relaxed) == 0 {}
    ENTERED.load(Relaxed).saturating_sub(sent)
}

fn on_irq(entered: u64) {
    let taken = gic::acknowledge();
    let intid = taken.intid();
    if taken.is_none() {
        return;
    }
    if intid == timer::INTID {
        timer::disarm();
    }
    ENTERED.store(entered, Relaxed);
    gic::end(taken);
}
