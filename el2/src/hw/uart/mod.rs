//! The board's UART, which carries the consoles. Firmware has set its speed. A build of EL2
//! supports one kind of UART, as it supports one version of the GIC: [`pl011`], or the kind that a
//! feature names.

#[cfg(feature = "uart-cadence")]
mod cadence;
#[cfg(feature = "uart-cadence")]
use cadence as device;
#[cfg(feature = "uart-imx")]
mod imx;
#[cfg(feature = "uart-imx")]
use imx as device;
#[cfg(feature = "uart-meson")]
mod meson;
#[cfg(feature = "uart-meson")]
use meson as device;
#[cfg(feature = "uart-ns16550")]
mod ns16550;
#[cfg(feature = "uart-ns16550")]
use ns16550 as device;
#[cfg(not(any(
    feature = "uart-cadence",
    feature = "uart-imx",
    feature = "uart-meson",
    feature = "uart-ns16550"
)))]
mod pl011;
#[cfg(not(any(
    feature = "uart-cadence",
    feature = "uart-imx",
    feature = "uart-meson",
    feature = "uart-ns16550"
)))]
use pl011 as device;

mod port;

use bulkhead_abi::plan::PAGE;

pub use device::{EARLY, KIND};
pub use port::Uart;

/// Whether the interrupts of this UART are edges, as the trees of all boards with it say.
pub const EDGE: bool = matches!(KIND, bulkhead_abi::plan::UartKind::Meson);

/// The page of a UART at this address, and where in it the UART begins.
pub const fn page_of(uart: u64) -> (u64, u64) {
    if KIND.is_within_page() {
        (uart & !(PAGE - 1), uart & (PAGE - 1))
    } else {
        (uart, 0)
    }
}

/// The number of polls for room before a byte is dropped; only before guests run.
const PATIENCE: u32 = 100_000;

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
