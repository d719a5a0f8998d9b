//! The board's UART, which carries the consoles. Firmware has set its speed. A build of EL2
//! supports one kind of UART, as it supports one version of the GIC: [`pl011`], or the kind that a
//! feature names. The common parts are here.

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

/// The number of polls for room before a byte is dropped; only before guests run.
const PATIENCE: u32 = 100_000;

/// The description of a UART with which `refuse.s` sends its last words: offsets of registers,
/// numbers of bits.
#[derive(Debug)]
pub struct Early {
    /// The register and the bit that says that there is no room.
    pub full: (u64, u32),
    /// The register to which bytes are written.
    pub data: u64,
    /// The register and the bit that says whether all bytes have been sent, and the bit's value
    /// then.
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

    /// Waits until all bytes have been sent.
    pub fn flush(self) {
        for _ in 0..PATIENCE {
            if self.is_idle() {
                return;
            }
        }
    }
}
