//! The board's UART, which carries the consoles. Firmware has set its speed. A build of EL2 knows one kind, as it knows one
//! version of the GIC: [`pl011`], or what a feature names. What all have alike is here.

use super::mmio::Registers;

#[cfg(feature = "uart-cadence")]
mod cadence;
#[cfg(feature = "uart-cadence")]
use cadence as device;
#[cfg(feature = "uart-imx")]
mod imx;
#[cfg(feature = "uart-imx")]
use imx as device;
#[cfg(not(any(feature = "uart-cadence", feature = "uart-imx")))]
mod pl011;
#[cfg(not(any(feature = "uart-cadence", feature = "uart-imx")))]
use pl011 as device;

pub use device::{EARLY, KIND};

/// Polls for room before a byte is given up; only before guests run.
const PATIENCE: u32 = 100_000;

/// How `refuse.s` sends its last words: offsets of registers, numbers of bits.
#[derive(Debug)]
pub struct Early {
    /// Where a bit says that there is no room, and which.
    pub full: (u64, u32),
    /// Where bytes go.
    pub data: u64,
    /// Where a bit says whether everything has left, which, and what it is then.
    pub idle: (u64, u32, u32),
}

/// The console UART.
#[derive(Clone, Copy, Debug)]
pub struct Uart(pub Registers);

impl Uart {
    /// Sends a byte, waiting for room. Only before guests run, and for EL2's last words.
    pub fn send_polled(self, byte: u8) {
        for _ in 0..PATIENCE {
            if self.has_space() {
                break;
            }
        }
        self.send(byte);
    }

    /// Waits until everything has left.
    pub fn flush(self) {
        for _ in 0..PATIENCE {
            if self.is_idle() {
                return;
            }
        }
    }
}
