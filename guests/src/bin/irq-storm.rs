//! Claim: interrupts of passed-through devices come as often as the devices raise them, and as long
//! as their lines stay up if nobody clears them.
//!
//! A second PL011 sends to itself by interrupt, byte for byte; a PL061 interrupts once for each
//! time that it is asked. Then both lines stay up: the handler ends each interrupt and leaves the
//! line alone, first that of the PL061, which is more urgent, later that of the PL011. After
//! `most=` interrupts (boot arguments) of all kinds the machine is turned off, in the handler,
//! lines up. So whoever counts above EL1 must have that number.
#![no_std]
#![no_main]

use bulkhead_guests::mmio::{read32, write32};
use bulkhead_guests::pl061::{GPIOIE, GPIOIEV, GPIOIS};
use bulkhead_guests::{Board, alive, check, gic, guest, power, println, sysreg, timer, uart};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};

guest!(main = main, irq = on_irq);

/// [`uart::CR`]: what is sent is received.
const LOOP_BACK: u32 = 1 << 7;
/// Bytes that the PL011 sends to itself.
const BYTES: u32 = 500;
/// Interrupts of the PL061 that are asked for.
const ASKED: u32 = 200;

static UART: AtomicUsize = AtomicUsize::new(0);
static GPIO: AtomicUsize = AtomicUsize::new(0);
static UART_INTID: AtomicU32 = AtomicU32::new(0);
static GPIO_INTID: AtomicU32 = AtomicU32::new(0);
/// Interrupts of both devices, since the start.
static ALL: AtomicU32 = AtomicU32::new(0);
static FOREIGN: AtomicU32 = AtomicU32::new(0);
static SENT: AtomicU32 = AtomicU32::new(0);
static RECEIVED: AtomicU32 = AtomicU32::new(0);
static GARBLED: AtomicU32 = AtomicU32::new(0);
static ANSWERED: AtomicU32 = AtomicU32::new(0);
/// The handler leaves lines alone, until so many interrupts have come; what it does then.
static STORM: AtomicBool = AtomicBool::new(false);
static PAUSE_AT: AtomicU32 = AtomicU32::new(0);
static MOST: AtomicU32 = AtomicU32::new(u32::MAX);
/// Interrupts of each device in the storm.
static STORMED: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

fn main(board: &'static Board) {
    let (Some(second), Some(gpio)) = (board.second_uart, board.gpio) else {
        return println!("FAIL irq-storm: it needs a second PL011 and a PL061");
    };
    UART.store(second.base, Relaxed);
    UART_INTID.store(second.intid, Relaxed);
    GPIO.store(gpio.base, Relaxed);
    GPIO_INTID.store(gpio.intid, Relaxed);
    gic::init();
    gic::enable(second.intid);
    gic::enable(gpio.intid);
    sysreg::irq_on();
    calm(second.base, gpio.base);

    let most = board.argument("most").unwrap_or(20_000) as u32;
    let before = ALL.load(Relaxed);
    PAUSE_AT.store(most / 2, Relaxed);
    MOST.store(most, Relaxed);
    STORM.store(true, Relaxed);
    // Which of two equals comes is up to the controller, for ever the same one perhaps.
    gic::set_priority(gpio.intid, gic::PRIORITY - 0x10);
    // Behind the mask: afterwards this CPU comes to nothing else.
    sysreg::masked(|| {
        write32(second.base + uart::IMSC, uart::INT_TX);
        write32(second.base + uart::DR, 0);
        write32(gpio.base + GPIOIE, 1);
    });
    let over = alive::wait(|| ALL.load(Relaxed) >= most / 2);
    check::holds("it has come to an end", over, "it has not");
    let count = ALL.load(Relaxed);
    check::equal(
        "a closed interrupt does not come",
        count.into(),
        u64::from(most / 2),
    );
    let [of_uart, of_gpio] = [0, 1].map(|n: usize| STORMED[n].load(Relaxed));
    check::equal(
        "all are of these two",
        u64::from(of_uart + of_gpio),
        u64::from(count - before),
    );
    check::holds(
        "the more urgent one came again and again",
        of_gpio > 1000 && of_gpio > of_uart,
        format_args!("{of_gpio} of the PL061, {of_uart} of the PL011"),
    );
    timer_lives();
    check::equal("interrupts of nobody", FOREIGN.load(Relaxed).into(), 0);
    check::done();
    // Now the other one, until the handler turns the machine off.
    gic::enable(second.intid);
    move_line(second.base + uart::IMSC, uart::INT_TX);
    loop {
        sysreg::wfi();
    }
}

/// The devices as they are meant to be used.
fn calm(second: usize, gpio: usize) {
    write32(second + uart::LCR_H, 0b111_0000);
    write32(second + uart::CR, 0b11_0000_0001 | LOOP_BACK);
    write32(second + uart::ICR, 0x7ff);
    write32(
        second + uart::IMSC,
        uart::INT_TX | uart::INT_RX | uart::INT_RT,
    );
    send(second);
    alive::wait(|| RECEIVED.load(Relaxed) == BYTES);
    check::same("bytes received", RECEIVED.load(Relaxed), BYTES);
    check::same("bytes out of order", GARBLED.load(Relaxed), 0);
    write32(second + uart::IMSC, 0);
    write32(gpio + GPIOIEV, 0);
    write32(gpio + GPIOIS, 1);
    for round in 1..=ASKED {
        write32(gpio + GPIOIE, 1);
        alive::wait(|| ANSWERED.load(Relaxed) == round);
    }
    timer::spin(1_000);
    check::same("interrupts of the PL061", ANSWERED.load(Relaxed), ASKED);
}

/// Sends the next byte, if any is left.
fn send(base: usize) {
    let next = SENT.load(Relaxed);
    if next < BYTES {
        SENT.store(next + 1, Relaxed);
        write32(base + uart::DR, next & 0xff);
    }
}

/// The rest of the machine works, while both lines are up and both interrupts closed.
fn timer_lives() {
    gic::enable(timer::INTID);
    timer::arm(timer::now());
    let came = alive::wait(|| timer::compare() == u64::MAX);
    check::holds("the timer comes with both lines up", came, "it does not");
    gic::disable(timer::INTID);
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    if taken.is_none() {
        return;
    }
    let intid = taken.intid();
    let (uart, gpio) = (UART.load(Relaxed), GPIO.load(Relaxed));
    if intid == timer::INTID {
        timer::arm(u64::MAX);
        timer::disarm();
    } else if intid == UART_INTID.load(Relaxed) {
        count(0);
        if !STORM.load(Relaxed) {
            uart_interrupt(uart);
        }
    } else if intid == GPIO_INTID.load(Relaxed) {
        count(1);
        if !STORM.load(Relaxed) {
            ANSWERED.fetch_add(1, Relaxed);
            write32(gpio + GPIOIE, 0);
        }
    } else {
        FOREIGN.fetch_add(1, Relaxed);
    }
    gic::end(taken);
    if STORM.load(Relaxed) {
        move_line(gpio + GPIOIE, 1);
        move_line(uart + uart::IMSC, uart::INT_TX);
    }
}

/// QEMU's GICv2 forgets a level that is up at the end of an interrupt, until the line moves.
fn move_line(mask: usize, open: u32) {
    if gic::version() == 2 {
        write32(mask, 0);
        write32(mask, open);
    }
}

/// Counts an interrupt of a device.
fn count(device: usize) {
    let all = ALL.fetch_add(1, Relaxed) + 1;
    if STORM.load(Relaxed) {
        STORMED[device].fetch_add(1, Relaxed);
    }
    if all == PAUSE_AT.load(Relaxed) {
        gic::disable(UART_INTID.load(Relaxed));
        gic::disable(GPIO_INTID.load(Relaxed));
    }
    if all == MOST.load(Relaxed) {
        power::off();
    }
}

fn uart_interrupt(base: usize) {
    let why = read32(base + uart::MIS);
    if why & (uart::INT_RX | uart::INT_RT) != 0 {
        while read32(base + uart::FR) & uart::FR_RXFE == 0 {
            let byte = read32(base + uart::DR) & 0xff;
            let place = RECEIVED.fetch_add(1, Relaxed);
            GARBLED.fetch_add(u32::from(byte != place & 0xff), Relaxed);
        }
        write32(base + uart::ICR, uart::INT_RX | uart::INT_RT);
    }
    if why & uart::INT_TX != 0 {
        write32(base + uart::ICR, uart::INT_TX);
        send(base);
    }
}
