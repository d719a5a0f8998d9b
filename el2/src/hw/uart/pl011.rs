//! Arm's PL011 (DDI 0183G).

use bulkhead_abi::plan::UartKind;

use super::port::{Early, Uart};

/// The number of this kind of UART in the plan.
pub const KIND: UartKind = UartKind::Pl011;
/// The registers for [`Early`]: UARTFR and UARTDR.
pub const EARLY: Early = Early {
    full: (FR, TXFF.trailing_zeros(), 1),
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
    /// Does nothing for start-up: firmware has left the UART ready to send.
    pub const fn open(self) {}

    /// Starts interrupts: FIFOs on, interrupt at one eighth, receive interrupts on.
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

    /// Receives a byte, if there is one.
    #[inline]
    pub fn receive(self) -> Option<u8> {
        (self.0.read(FR) & RXFE == 0).then(|| self.0.read(DR) as u8)
    }

    /// Enables the interrupts for room in the transmit FIFO and for received bytes, or disables
    /// them.
    pub fn ask(self, space: bool, input: bool) {
        let space = if space { INT_TX } else { 0 };
        let input = if input { INT_RX | INT_RT } else { 0 };
        self.0.write(IMSC, space | input);
    }

    /// Whether all bytes have been sent.
    pub fn is_idle(self) -> bool {
        self.0.read(FR) & BUSY == 0
    }
}
