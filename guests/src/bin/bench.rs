//! Claim: the cost of an operation at EL2 is a number that anybody can count again.
//!
//! Runs each operation of `figures.rs` 1000 times between two marks. Nothing is printed between
//! them. At the end it prints what it saw itself: latencies in ticks of the counter, to compare
//! with a run without a hypervisor.
#![no_std]
#![no_main]

use bulkhead_guests::figures::{self, OPERATIONS};
use bulkhead_guests::marks::{mark_begin, mark_end};
use bulkhead_guests::mmio::{read32, read64, write32, write64};
use bulkhead_guests::pl061::{GPIOIE, GPIOIEV, GPIOIS, PL061, PL061_INTID};
use bulkhead_guests::{Board, cpu, gic, guest, mrs, power, println, start, sysreg, timer, uart};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

guest!(main = main, irq = on_irq);

/// SGI that is sent to ourselves.
const SGI: u32 = 1;
/// SGI that is sent to the sibling.
const SIBLING_SGI: u32 = 2;
/// First of the SGIs of which there are more than list registers.
const FIRST_OF_MANY: u32 = 8;
/// From arming the timer to its interrupt: long enough for the guest to be asleep or in its loop.
const AHEAD_US: u64 = 5;

/// Counter at the vector of the latest interrupt; 0 while it is awaited.
static ENTERED: AtomicU64 = AtomicU64::new(0);
/// Interrupts of [`FIRST_OF_MANY`] and its followers that were taken.
static TAKEN: AtomicU32 = AtomicU32::new(0);

/// Latencies of one group.
struct Latency {
    name: &'static str,
    min: u64,
    max: u64,
    sum: u64,
}

fn main(board: &'static Board) {
    // Where others start beside it, it waits for that.
    timer::spin(1000 * board.argument("after").unwrap_or(0));
    let restart = restart(board);
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
    let has_pl061 = board.devices.iter().any(|device| device.base == PL061);
    more(has_pl061);
    let sgi = latency(figures::SGI_SELF, "sgi_self", sgi_to_self);
    let hw_irq = has_pl061.then(|| {
        write32(PL061 + GPIOIEV, 0);
        write32(PL061 + GPIOIS, 1);
        gic::enable(PL061_INTID);
        latency(figures::HW_IRQ, "hw_irq", device_interrupt)
    });
    for n in 0..figures::OVERFLOWING {
        gic::enable(FIRST_OF_MANY + n);
    }
    group(figures::LR_OVERFLOW, overflow);
    let sibling = (board.cpus > 1).then(|| {
        cpu::start(1, sleep_for_ever, 0);
        cpu::wait(|| ENTERED.load(Relaxed) == SIBLING_READY);
        latency(figures::SGI_SIBLING_WFI, "sgi_sibling_wfi", sgi_to_sibling)
    });

    for Latency {
        name,
        min,
        max,
        sum,
    } in [Some(spinning), Some(asleep), Some(sgi), hw_irq, sibling]
        .into_iter()
        .flatten()
    {
        let average = sum / u64::from(OPERATIONS);
        println!("latency {name}: ticks min={min} avg={average} max={max}");
    }
    if let Some(ticks) = restart {
        println!("latency restart: ticks min={ticks} avg={ticks} max={ticks}");
    }
    println!(
        "bench: {OPERATIONS} operations each, {} ticks per second",
        timer::frequency()
    );
}

/// Asks for a reset once, and in the life after it says how long that took: from the call to the first instruction.
fn restart(board: &Board) -> Option<u64> {
    let page = board.shared("restart")?.base;
    if read32(page) == 0 {
        write32(page, 1);
        write64(page + 8, timer::now());
        power::reset();
    }
    Some(start::entered().saturating_sub(read64(page + 8)))
}

/// Bytes of a line of output, and microseconds after which it is on the board's UART.
const LINE: u32 = 50;
const LINE_US: u64 = 1000;

/// An SPI that no device has.
const SPI: u32 = 45;

/// Measures operations of which users make many, beside those that are measured for their path.
fn more(has_pl061: bool) {
    // Function and x1. All are answered and change nothing.
    let calls: [(u32, u64); figures::CALLS as usize] = [
        (0x8400_0000, 0),           // PSCI_VERSION
        (0x8400_000a, 0xc400_0003), // PSCI_FEATURES of CPU_ON
        (0x8400_000a, 0x8400_00ff), // PSCI_FEATURES of nothing
        (0xc400_0004, 0),           // AFFINITY_INFO of vCPU 0
        (0x8400_0006, 0),           // MIGRATE_INFO_TYPE
        (0x8000_0000, 0),           // SMCCC_VERSION
        (0x8000_0001, 0x8000_8000), // SMCCC_ARCH_FEATURES of WORKAROUND_1
        (0xc500_0020, 0xc500_0021), // PV_TIME_FEATURES of PV_TIME_ST
        (0x8600_ff01, 0),           // Call UID of the hypervisor
        (0x8600_ff42, 0),           // nobody's
    ];
    group(figures::HVC_MEAN, || {
        for (function, argument) in calls {
            power::hvc(function, [argument, 0, 0, 0, 0, 0, 0]);
        }
    });
    let bit = 1 << (SPI % 32);
    let [off, on, pend, clear] = [gic::ICENABLER, gic::ISENABLER, gic::ISPENDR, gic::ICPENDR]
        .map(|bank| gic::word(bank, SPI));
    write32(off, bit);
    each(|| {
        marked(figures::GICD_ENABLE_CHANGE, || write32(on, bit));
        marked(figures::GICD_DISABLE_CHANGE, || write32(off, bit));
        marked(figures::GICD_PEND_WRITE, || write32(pend, bit));
        write32(clear, bit);
    });
    sysreg::irq_off();
    write32(on, bit);
    each(|| {
        marked(figures::GICD_PEND_ENABLED, || write32(pend, bit));
        write32(clear, bit);
    });
    write32(off, bit);
    sysreg::irq_on();
    if has_pl061 {
        let bit = 1 << (PL061_INTID % 32);
        let [off, on] = [gic::ICENABLER, gic::ISENABLER].map(|bank| gic::word(bank, PL061_INTID));
        each(|| {
            marked(figures::GICD_ENABLE_HW, || write32(on, bit));
            marked(figures::GICD_DISABLE_HW, || write32(off, bit));
        });
    }
    let priorities = gic::distributor() + gic::IPRIORITYR + (SPI as usize & !3);
    let mut priority = 0;
    group(figures::GICD_PRIORITY_WRITE, || {
        priority ^= 0x1010_1010;
        write32(priorities, priority);
    });
    let [off, on] = [gic::ICENABLER, gic::ISENABLER].map(|bank| gic::word(bank, FIRST_OF_MANY));
    each(|| {
        write32(off, 1 << FIRST_OF_MANY);
        marked(figures::GICR_ENABLE_CHANGE, || {
            write32(on, 1 << FIRST_OF_MANY)
        });
    });
    let [off, on] = [gic::ICENABLER, gic::ISENABLER].map(|bank| gic::word(bank, timer::INTID));
    each(|| {
        marked(figures::GICR_DISABLE_HW, || write32(off, 1 << timer::INTID));
        marked(figures::GICR_ENABLE_HW, || write32(on, 1 << timer::INTID));
    });
    group(figures::ID_REGISTER, || _ = mrs!("id_aa64pfr0_el1"));
    if uart::base() != 0 {
        // Whole lines, each with the time until it is on the board's UART: its way there is EL2's work, too.
        for _ in 0..OPERATIONS / LINE {
            marked(figures::UART_WRITE, || {
                for n in 1..=LINE {
                    let byte = if n == LINE { b'\n' } else { b'.' };
                    write32(uart::base() + uart::DR, byte.into());
                }
                timer::spin(LINE_US);
            });
        }
    }
}

fn each(mut operation: impl FnMut()) {
    for _ in 0..OPERATIONS {
        operation();
    }
}

fn marked(id: u64, operation: impl FnOnce()) {
    mark_begin(id);
    operation();
    mark_end(id);
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
            sysreg::sleep();
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

/// From opening the mask of the device, whose line is then up, to the vector.
fn device_interrupt() -> u64 {
    ENTERED.store(0, Relaxed);
    let sent = timer::now();
    write32(PL061 + GPIOIE, 1);
    while ENTERED.load(Relaxed) == 0 {}
    ENTERED.load(Relaxed).saturating_sub(sent)
}

/// Sends more SGIs than there are list registers while all are masked, then takes them.
fn overflow() {
    TAKEN.store(0, Relaxed);
    sysreg::irq_off();
    for n in 0..figures::OVERFLOWING {
        gic::send_to_self(FIRST_OF_MANY + n);
    }
    sysreg::irq_on();
    while TAKEN.load(Relaxed) < figures::OVERFLOWING {}
}

/// [`ENTERED`] when the sibling is about to sleep for the first time.
const SIBLING_READY: u64 = 1;

fn sleep_for_ever(_context: u64) {
    gic::init_cpu();
    gic::enable(SIBLING_SGI);
    sysreg::irq_on();
    ENTERED.store(SIBLING_READY, Relaxed);
    loop {
        sysreg::wfi();
    }
}

/// From the counter just before the SGI to the sibling's vector. The sender gives its turn away, so that
/// it stands still meanwhile.
fn sgi_to_sibling() -> u64 {
    ENTERED.store(0, Relaxed);
    let sent = timer::now();
    gic::send(SIBLING_SGI, 1 << 1);
    while ENTERED.load(Relaxed) == 0 {
        sysreg::cpu_yield();
    }
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
    } else if intid == PL061_INTID {
        write32(PL061 + GPIOIE, 0);
    } else if (FIRST_OF_MANY..16).contains(&intid) {
        TAKEN.fetch_add(1, Relaxed);
    }
    ENTERED.store(entered, Relaxed);
    gic::end(taken);
}
