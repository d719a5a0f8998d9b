//! Arm's PL011 (DDI 0183G).

use bulkhead_abi::plan::UartKind;

use super::{Early, Uart};

/// What it is in the plan.
pub const KIND: UartKind = UartKind::Pl011;
/// As [`Early`] says: UARTFR and UARTDR.
pub const EARLY: Early = Early {
    full: (FR, TXFF.trailing_zeros()),
    data: DR,
    idle: (FR, BUSY.trailing_zeros(), 0),
};

const DR: u64 = 0x00;
const FR: u64 = 0x18;
const LCR_H: u64 = 0x2c;
const CR: u64 = 0x30;
const IFLS: u64 = 0x34;
const IMSC: u64 = 0x38;
const ICR: u64 = 0x44;
const TXFF: u32 = 1 << 5;
const RXFE: u32 = 1 << 4;
const BUSY: u32 = 1 << 3;
const INT_RX: u32 = 1 << 4;
const INT_TX: u32 = 1 << 5;
const INT_RT: u32 = 1 << 6;

impl Uart {
    /// Lets it send, for start-up: firmware has left it so.
    pub const fn open(self) {}

    /// FIFOs on, interrupt at one eighth, receive interrupts on.
    pub fn start(self) {
        self.0.write(IMSC, 0);
        self.0.write(ICR, 0x7ff);
        self.0.write(IFLS, 0);
        self.0.write(LCR_H, 0x70);
        self.0.write(CR, 0x301);
        self.0.write(IMSC, INT_RX | INT_RT);
    }

    /// Whether there is room for a byte.
    #[inline]
    pub fn has_space(self) -> bool {
        self.0.read(FR) & TXFF == 0
    }

    /// Sends a byte for which there is room.
    #[inline]
    pub fn send(self, byte: u8) {
        self.0.write(DR, u32::from(byte));
    }

    /// A received byte.
    #[inline]
    pub fn receive(self) -> Option<u8> {
        (self.0.read(FR) & RXFE == 0).then(|| self.0.read(DR) as u8)
    }

    /// Asks for an interrupt when the transmit FIFO has room, or no longer.
    pub fn ask_for_space(self, on: bool) {
        self.0.write(
            IMSC,
            if on {
                INT_RX | INT_RT | INT_TX
            } else {
                INT_RX | INT_RT
            },
        );
    }

    /// Everything has left.
    pub fn is_idle(self) -> bool {
        self.0.read(FR) & BUSY == 0
    }
}
