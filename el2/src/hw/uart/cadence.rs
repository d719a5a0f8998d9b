//! Cadence's UART, as the Zynq UltraScale+ has it (UG1085, chapter "UART Controller"; UG1087,
//! module "UART").
//!
//! Bits of its interrupt status stay set until they are written, whatever the FIFO does meanwhile.
//! So the bit of a received byte is cleared only after the FIFO was seen empty, and the FIFO is
//! checked again afterwards; the bit of an empty FIFO is cleared before each byte that is written
//! to the FIFO. Then neither interrupt can be lost, and bytes that are left in the FIFO interrupt
//! again.

use bulkhead_abi::plan::UartKind;

use super::port::{Early, Uart};

/// The number of this kind of UART in the plan.
pub const KIND: UartKind = UartKind::Cadence;
/// The registers for [`Early`]: Channel_sts_reg0 and TX_RX_FIFO0.
pub const EARLY: Early = Early {
    full: (STATUS, TX_FULL.trailing_zeros(), 1),
    data: FIFO,
    idle: (STATUS, TX_EMPTY.trailing_zeros(), 1),
};

const CONTROL: u64 = 0x00;
const MODE: u64 = 0x04;
const ENABLE: u64 = 0x08;
const DISABLE: u64 = 0x0c;
const INTERRUPTS: u64 = 0x14;
const RX_TIMEOUT: u64 = 0x1c;
const RX_TRIGGER: u64 = 0x20;
const STATUS: u64 = 0x2c;
const FIFO: u64 = 0x30;
/// `CONTROL`: the receiver empty and on, the transmitter on, no break.
const RX_RESET: u32 = 1;
const RX_ON: u32 = 1 << 2;
const TX_ON: u32 = 1 << 4;
const NO_BREAK: u32 = 1 << 8;
/// `MODE`: the channel is looped back, or echoes.
const CHANNEL: u32 = 0b11 << 8;
/// `STATUS` and `INTERRUPTS`, which have the same bits where both have one.
const RX_TRIGGERED: u32 = 1;
const RX_EMPTY: u32 = 1 << 1;
const TX_EMPTY: u32 = 1 << 3;
const TX_FULL: u32 = 1 << 4;
/// `STATUS` alone: a byte is on its way out.
const TX_ACTIVE: u32 = 1 << 11;
const ALL: u32 = 0x1fff;

impl Uart {
    /// Enables sending, for start-up. After a reset the UART does not send, and not every board has
    /// had firmware.
    pub fn open(self) {
        self.0.write(CONTROL, RX_ON | TX_ON | NO_BREAK);
    }

    /// Starts interrupts, at the first received byte, so that no time-out is needed. Bytes received
    /// before are dropped; bytes that are being sent are not.
    pub fn start(self) {
        self.0.write(DISABLE, ALL);
        self.0.write(MODE, self.0.read(MODE) & !CHANNEL);
        self.0.write(RX_TIMEOUT, 0);
        self.0.write(RX_TRIGGER, 1);
        self.0.write(CONTROL, RX_RESET | RX_ON | TX_ON | NO_BREAK);
        self.0.write(INTERRUPTS, ALL);
        self.0.write(ENABLE, RX_TRIGGERED);
    }

    /// Whether there is room for a byte.
    #[inline]
    pub fn has_space(self) -> bool {
        self.0.read(STATUS) & TX_FULL == 0
    }

    /// Sends a byte for which there is room.
    #[inline]
    pub fn send(self, byte: u8) {
        self.0.write(INTERRUPTS, TX_EMPTY);
        self.0.write(FIFO, u32::from(byte));
    }

    /// Receives a byte, if there is one.
    #[inline]
    pub fn receive(self) -> Option<u8> {
        if self.0.read(STATUS) & RX_EMPTY != 0 {
            self.0.write(INTERRUPTS, RX_TRIGGERED);
            if self.0.read(STATUS) & RX_EMPTY != 0 {
                return None;
            }
        }
        Some(self.0.read(FIFO) as u8)
    }

    /// Enables the interrupts for an empty transmit FIFO and for received bytes, or disables them.
    pub fn ask(self, space: bool, input: bool) {
        let space = if space { TX_EMPTY } else { 0 };
        let input = if input { RX_TRIGGERED } else { 0 };
        let on = space | input;
        self.0.write(DISABLE, (TX_EMPTY | RX_TRIGGERED) & !on);
        self.0.write(ENABLE, on);
    }

    /// Whether all bytes have been sent.
    pub fn is_idle(self) -> bool {
        self.0.read(STATUS) & (TX_EMPTY | TX_ACTIVE) == TX_EMPTY
    }
}
