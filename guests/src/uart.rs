//! PL011 (DDI 0183): the console.

use crate::mmio::{read32, write32};
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Data.
pub const DR: usize = 0x00;
/// Flags.
pub const FR: usize = 0x18;
/// Line control.
pub const LCR_H: usize = 0x2c;
/// Control.
pub const CR: usize = 0x30;
/// Levels at which the FIFOs raise their interrupts.
pub const IFLS: usize = 0x34;
/// Interrupt mask (1 = open).
pub const IMSC: usize = 0x38;
/// Interrupts before the mask.
pub const RIS: usize = 0x3c;
/// Interrupts behind the mask.
pub const MIS: usize = 0x40;
/// Clears interrupts.
pub const ICR: usize = 0x44;

/// [`FR`]: nothing received.
pub const FR_RXFE: u32 = 1 << 4;
/// [`FR`]: no room to transmit.
pub const FR_TXFF: u32 = 1 << 5;
/// [`FR`]: nothing left to transmit.
pub const FR_TXFE: u32 = 1 << 7;
/// [`RIS`] and others: receive FIFO has reached its level.
pub const INT_RX: u32 = 1 << 4;
/// [`RIS`] and others: transmit FIFO has fallen to its level.
pub const INT_TX: u32 = 1 << 5;
/// [`RIS`] and others: something received has waited for 32 bit times.
pub const INT_RT: u32 = 1 << 6;

static BASE: AtomicUsize = AtomicUsize::new(0);

/// Accesses of this module to the registers, and characters other than white space that it has printed.
static ACCESSES: AtomicU64 = AtomicU64::new(0);
static CHARACTERS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of register accesses of this module.
pub fn accesses() -> u64 {
    ACCESSES.load(Relaxed)
}

/// Returns the number of characters other than white space that this module has printed.
pub fn characters() -> u64 {
    CHARACTERS.load(Relaxed)
}

/// One CPU prints. A load and a store: without translation there are no exclusive accesses.
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

fn load(offset: usize) -> u32 {
    count(&ACCESSES);
    read32(base() + offset)
}

fn store(offset: usize, value: u32) {
    count(&ACCESSES);
    write32(base() + offset, value);
}

/// Sets the address of the registers; 0 means no console.
pub(crate) fn set_base(base: usize) {
    BASE.store(base, Relaxed);
}

/// Address of the registers; 0 means no console.
pub fn base() -> usize {
    BASE.load(Relaxed)
}

/// Turns transmitter, receiver and FIFOs on. QEMU and firmware do it too; a PL011 after reset is off.
pub fn init() {
    if base() != 0 {
        store(IMSC, 0);
        store(LCR_H, 0b111_0000); // 8 bits, FIFOs on
        store(CR, 0b11_0000_0001); // UART, transmit, receive
    }
}

/// Sends one byte, waiting for room.
pub fn put(byte: u8) {
    if base() != 0 {
        while load(FR) & FR_TXFF != 0 {}
        store(DR, byte.into());
    }
}

/// Sends one byte, if there is room. Returns whether there was.
pub fn offer(byte: u8) -> bool {
    let room = base() == 0 || load(FR) & FR_TXFF == 0;
    if room && base() != 0 {
        store(DR, byte.into());
    }
    room
}

/// Has received bytes raise the interrupt.
pub fn interrupt_for_input() {
    if base() != 0 {
        store(IMSC, INT_RX | INT_RT);
    }
}

/// Takes one received byte, if there is one.
pub fn get() -> Option<u8> {
    if base() == 0 || load(FR) & FR_RXFE != 0 {
        return None;
    }
    Some((load(DR) & 0xff) as u8)
}

/// The console as a destination of text.
pub struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if byte == b'\n' {
                put(b'\r');
            }
            if !byte.is_ascii_whitespace() {
                count(&CHARACTERS);
            }
            put(byte);
        }
        Ok(())
    }
}

/// Prints on the console.
#[macro_export]
macro_rules! print {
    ($($arguments:tt)*) => {{
        use ::core::fmt::Write as _;
        // The console never refuses.
        let _always_ok = write!($crate::uart::Console, $($arguments)*);
    }};
}

/// Prints a line on the console.
#[macro_export]
macro_rules! println {
    () => { $crate::print!("\n") };
    ($($arguments:tt)*) => { $crate::print!("{}\n", format_args!($($arguments)*)) };
}
