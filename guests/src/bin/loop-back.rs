//! Claim: a device of which only the description says that it does no DMA is the VM's: registers and interrupt.
//!
//! Cadence's UART sends to itself, byte for byte, each told of by an interrupt. The VM starts again once: then it finds the UART as
//! it left it, because nothing is known that quiets it.
#![no_std]
#![no_main]

use bulkhead_guests::mmio::{read32, write32};
use bulkhead_guests::{Board, alive, check, gic, guest, power, println, sysreg};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

guest!(main = main, irq = on_irq);

// Registers (UG1087, UART module).
const CONTROL: usize = 0x00;
const MODE: usize = 0x04;
const ENABLE: usize = 0x08;
const DISABLE: usize = 0x0c;
const STATUS: usize = 0x14;
const TRIGGER: usize = 0x20;
const FIFO: usize = 0x30;
/// [`CONTROL`]: both directions emptied and on.
const FRESH: u32 = 0b1_0111;
/// [`MODE`]: what is sent is received; 8 bits, no parity.
const LOOP_BACK: u32 = 2 << 8 | 4 << 3;
/// [`TRIGGER`] of the first life, which the second one finds; 1 while bytes are sent.
const LEFT: u32 = 13;
/// Interrupt: so many bytes are there as [`TRIGGER`] says.
const RECEIVED: u32 = 1;
const BYTES: u32 = 200;

static BASE: AtomicUsize = AtomicUsize::new(0);
static INTID: AtomicU32 = AtomicU32::new(0);
static CAME: AtomicU32 = AtomicU32::new(0);
static WRONG: AtomicU32 = AtomicU32::new(0);
static FOREIGN: AtomicU32 = AtomicU32::new(0);

fn main(board: &'static Board) {
    let Some(uart) = board.cadence else {
        check::holds(
            "there is a UART of the board",
            false,
            "the device tree has none",
        );
        return check::done();
    };
    let again = read32(uart.base + TRIGGER) == LEFT;
    BASE.store(uart.base, Relaxed);
    INTID.store(uart.intid, Relaxed);
    gic::init();
    gic::enable(uart.intid);
    sysreg::irq_on();
    write32(uart.base + DISABLE, u32::MAX);
    write32(uart.base + CONTROL, FRESH);
    write32(uart.base + MODE, LOOP_BACK);
    write32(uart.base + TRIGGER, 1);
    write32(uart.base + STATUS, u32::MAX);
    write32(uart.base + ENABLE, RECEIVED);
    for round in 1..=BYTES {
        write32(uart.base + FIFO, round & 0xff);
        if !alive::wait(|| CAME.load(Relaxed) == round) {
            break;
        }
    }
    check::same("interrupts of the UART", CAME.load(Relaxed), BYTES);
    check::same("bytes that came wrong", WRONG.load(Relaxed), 0);
    check::same("interrupts of nobody", FOREIGN.load(Relaxed), 0);
    if again {
        println!("as it was left");
        return check::done();
    }
    write32(uart.base + TRIGGER, LEFT);
    println!("once more");
    power::reset();
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if taken.is_none() {
        return;
    }
    if taken.intid() == INTID.load(Relaxed) {
        let base = BASE.load(Relaxed);
        let round = CAME.load(Relaxed) + 1;
        let byte = read32(base + FIFO);
        WRONG.fetch_add(u32::from(byte != round & 0xff), Relaxed);
        write32(base + STATUS, RECEIVED);
        CAME.store(round, Relaxed);
    } else {
        FOREIGN.fetch_add(1, Relaxed);
    }
    gic::end(taken);
}
