//! The PL011 by interrupts, with Embassy's channel and pipe in between.

use bulkhead_guests::mmio::{read32, write32};
use bulkhead_guests::uart::{self, *};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use embassy_sync::blocking_mutex::raw::CriticalSectionRawMutex;
use embassy_sync::channel::Channel;
use embassy_sync::pipe::Pipe;

static RECEIVED: Channel<CriticalSectionRawMutex, u8, 128> = Channel::new();
static SENDING: Pipe<CriticalSectionRawMutex, 128> = Pipe::new();

/// Interrupts of the receiver and of the transmitter.
pub static INTERRUPTS: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

/// Opens the interrupts of the receiver; those of the transmitter while there is something to send.
pub fn open() {
    set(ICR, INT_RX | INT_RT | INT_TX);
    set(IMSC, INT_RX | INT_RT);
}

fn register(offset: usize) -> u32 {
    read32(uart::base() + offset)
}

fn set(offset: usize, value: u32) {
    write32(uart::base() + offset, value);
}

/// Sends text; waits for room without holding up other tasks.
pub async fn send(text: &str) {
    let mut left = text.as_bytes();
    while !left.is_empty() {
        let written = SENDING.write(left).await;
        left = &left[written..];
        // The transmitter's interrupt tells of room that has become free: the first bytes go by hand.
        critical_section::with(|_| fill());
    }
}

/// Waits until everything has left the pipe and the FIFO.
pub async fn flush() {
    while !SENDING.is_empty() || register(FR) & FR_TXFE == 0 {
        embassy_futures::yield_now().await;
    }
}

/// Waits for the next byte.
pub async fn receive() -> u8 {
    RECEIVED.receive().await
}

/// Moves bytes from the pipe to the FIFO; opens the interrupt if some are left.
fn fill() {
    let mut byte = [0];
    while register(FR) & FR_TXFF == 0 {
        if SENDING.try_read(&mut byte).is_err() {
            break;
        }
        set(DR, byte[0].into());
    }
    let more = if SENDING.is_empty() { 0 } else { INT_TX };
    set(IMSC, INT_RX | INT_RT | more);
}

/// The PL011's interrupt.
pub fn on_irq() {
    let why = register(MIS);
    if why & INT_TX != 0 {
        INTERRUPTS[1].fetch_add(1, Relaxed);
        set(ICR, INT_TX);
        fill();
    }
    if why & (INT_RX | INT_RT) != 0 {
        INTERRUPTS[0].fetch_add(1, Relaxed);
        set(ICR, INT_RX | INT_RT);
        while let Some(byte) = uart::get() {
            // A full channel loses bytes, as a full FIFO does.
            _ = RECEIVED.try_send(byte);
        }
    }
}
