//! Claim: the emulated PL011 works by interrupt in both directions.
//!
//! Sends text by the transmit interrupt, checks flags and interrupt registers, then waits for `lines=`
//! lines (boot arguments; none by default) and echoes each as `echo: ...`. It says `READY` when it
//! can take a line.
#![no_std]
#![no_main]

use bulkhead_guests::mmio::{read32, write32};
use bulkhead_guests::probe::{self, Width};
use bulkhead_guests::uart::{self, DR, FR, FR_RXFE, FR_TXFE, FR_TXFF, ICR, IMSC, INT_RT, INT_RX};
use bulkhead_guests::uart::{IFLS, INT_TX, MIS, RIS};
use bulkhead_guests::{Board, alive, check, gic, guest, print, println, sysreg};
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

guest!(main = main, irq = on_irq);

/// Text that the handler sends.
const TEXT: &[u8] = b"uart: this line was sent by interrupt, a few bytes at a time\r\n";
/// Bytes that the handler sends for each interrupt: less than the FIFO, so that it must come again.
const BURST: usize = 8;
/// Longest line that is echoed.
const LINE: usize = 80;

static INTID: AtomicU32 = AtomicU32::new(0);
static SENT: AtomicU32 = AtomicU32::new(0);
static TX_INTERRUPTS: AtomicU32 = AtomicU32::new(0);
static RX_INTERRUPTS: AtomicU32 = AtomicU32::new(0);
// A ring of received bytes: the handler fills it, `main` empties it.
static RING: [AtomicU8; 256] = [const { AtomicU8::new(0) }; 256];
static HEAD: AtomicU8 = AtomicU8::new(0);
static TAIL: AtomicU8 = AtomicU8::new(0);

fn main(board: &'static Board) {
    if uart::base() == 0 {
        return;
    }
    INTID.store(board.uart_intid, Relaxed);
    gic::init();
    gic::enable(board.uart_intid);
    sysreg::irq_on();
    registers();
    accesses();
    transmit();
    receive(board.argument("lines").unwrap_or(0));
    check::done();
}

fn register(offset: usize) -> u32 {
    read32(uart::base() + offset)
}

fn set(offset: usize, value: u32) {
    write32(uart::base() + offset, value);
}

fn drained() -> bool {
    register(FR) & FR_TXFE != 0
}

fn registers() {
    let id = (0..4).fold(0, |id, n| id | (register(0xfe0 + 4 * n) & 0xff) << (8 * n));
    check::equal("peripheral id", u64::from(id & 0xf_ffff), 0x4_1011);
    let cell = (0..4).fold(0, |id, n| id | (register(0xff0 + 4 * n) & 0xff) << (8 * n));
    check::equal("PrimeCell id", cell.into(), 0xb105_f00d);
    check::holds(
        "transmit FIFO runs empty",
        alive::wait(drained),
        "FR.TXFE stays 0",
    );
    check::equal("FR.TXFF when empty", u64::from(register(FR) & FR_TXFF), 0);
    check::equal(
        "FR.RXFE when nothing was received",
        u64::from(register(FR) & FR_RXFE),
        0x10,
    );
    set(IFLS, 0b001_010);
    check::equal("IFLS reads back", register(IFLS).into(), 0b001_010);
    set(IFLS, 0b010_010);
    set(IMSC, 0);
    check::equal("MIS while all is masked", register(MIS).into(), 0);
    set(IMSC, INT_RX | INT_RT);
    check::equal(
        "IMSC reads back",
        register(IMSC).into(),
        (INT_RX | INT_RT).into(),
    );
    check::equal(
        "MIS is RIS behind the mask",
        register(MIS).into(),
        (register(RIS) & (INT_RX | INT_RT)).into(),
    );
    set(IMSC, 0);
}

/// Accesses of other sizes than a word, which drivers use, and those that a hypervisor cannot know: they have no valid syndrome.
fn accesses() {
    let identification = uart::base() + 0xfe0;
    for width in [Width::Byte, Width::Half] {
        let read = probe::read(width, identification).unwrap_or(99);
        check::equal("identification, by bytes and half-words", read, 0x11);
        let written = probe::write(width, uart::base() + IMSC, INT_RX.into());
        check::holds(
            "a write by bytes and half-words",
            written.is_ok(),
            "a fault",
        );
        check::equal("IMSC", register(IMSC).into(), INT_RX.into());
        set(IMSC, 0);
    }
    for (instruction, what) in [
        (0x2940_0801, "ldp w1, w2"),
        (0xb840_4401, "ldr w1, post-indexed"),
    ] {
        let mut registers = [uart::base() as u64, 0, 0, 0, 0, 0, 0, 0];
        let fault = probe::code(&[instruction], &mut registers).err();
        let is_abort = fault.is_some_and(|fault| fault.is_data_external_abort());
        check::holds(
            "an access that names no register is an abort",
            is_abort,
            what,
        );
    }
}

fn transmit() {
    alive::wait(drained);
    set(ICR, INT_TX);
    check::equal("RIS after ICR", u64::from(register(RIS) & INT_TX), 0);
    // The interrupt tells that the FIFO has fallen to its level: something has to be sent first.
    set(IMSC, INT_TX);
    SENT.store(1, Relaxed);
    set(DR, TEXT[0].into());
    let all = alive::wait(|| SENT.load(Relaxed) as usize == TEXT.len());
    set(IMSC, 0);
    alive::wait(drained);
    check::holds(
        "transmitted by interrupt",
        all,
        format_args!("{} bytes", SENT.load(Relaxed)),
    );
    let interrupts = TX_INTERRUPTS.load(Relaxed) as usize;
    let least = TEXT.len() / BURST;
    check::holds(
        "an interrupt for each burst",
        interrupts >= least,
        format_args!("{interrupts}"),
    );
}

fn receive(lines: u64) {
    set(ICR, INT_RX | INT_RT);
    set(IMSC, INT_RX | INT_RT);
    for number in 0..lines {
        println!("READY");
        let mut line = [0; LINE];
        let length = take_line(&mut line);
        print!("echo: ");
        line[..length].iter().for_each(|byte| uart::put(*byte));
        println!();
        check::holds(format_args!("line {number}"), length != 0, "empty");
    }
    set(IMSC, 0);
    if lines != 0 {
        let interrupts = RX_INTERRUPTS.load(Relaxed);
        check::holds("received by interrupt", interrupts != 0, "no interrupt");
    }
}

/// Collects bytes to the end of a line, asleep in between.
fn take_line(line: &mut [u8; LINE]) -> usize {
    let mut length = 0;
    loop {
        sysreg::irq_off();
        let tail = TAIL.load(Relaxed);
        if tail == HEAD.load(Relaxed) {
            sysreg::wfi(); // wakes for a masked interrupt too, so that none is missed
            sysreg::irq_on();
            sysreg::isb();
            continue;
        }
        sysreg::irq_on();
        let byte = RING[usize::from(tail)].load(Relaxed);
        TAIL.store(tail.wrapping_add(1), Relaxed);
        match byte {
            b'\r' | b'\n' if length != 0 => return length,
            b'\r' | b'\n' => {}
            _ if length < LINE => {
                line[length] = byte;
                length += 1;
            }
            _ => {}
        }
    }
}

fn on_irq(_entered: u64) {
    let taken = gic::acknowledge();
    let intid = taken.intid();
    if taken.is_none() {
        return;
    }
    if intid == INTID.load(Relaxed) {
        let why = register(MIS);
        if why & INT_TX != 0 {
            TX_INTERRUPTS.fetch_add(1, Relaxed);
            set(ICR, INT_TX);
            send_burst();
        }
        if why & (INT_RX | INT_RT) != 0 {
            RX_INTERRUPTS.fetch_add(1, Relaxed);
            while let Some(byte) = uart::get() {
                let head = HEAD.load(Relaxed);
                RING[usize::from(head)].store(byte, Relaxed);
                HEAD.store(head.wrapping_add(1), Relaxed);
            }
            set(ICR, INT_RX | INT_RT);
        }
    }
    gic::end(taken);
}

fn send_burst() {
    for _ in 0..BURST {
        let sent = SENT.load(Relaxed);
        match TEXT.get(sent as usize) {
            Some(byte) if register(FR) & FR_TXFF == 0 => {
                SENT.store(sent + 1, Relaxed);
                set(DR, (*byte).into());
            }
            _ => return,
        }
    }
}
