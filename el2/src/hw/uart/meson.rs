//! The UART of Amlogic's Meson (S905X datasheet, "UART": WFIFO, RFIFO, CONTROL, STATUS, MISC).
//!
//! Its interrupt is an edge: it comes when a FIFO crosses its level, or when the interrupt is enabled
//! behind its level. Whoever takes it empties or fills the FIFO, or looks again later.

use bulkhead_abi::plan::UartKind;

use super::port::{Early, Uart};

/// The number of this kind of UART in the plan.
pub const KIND: UartKind = UartKind::Meson;
/// The registers for [`Early`]: STATUS and WFIFO.
pub const EARLY: Early = Early {
    full: (STATUS, TX_FULL.trailing_zeros(), 1),
    data: WFIFO,
    idle: (STATUS, TX_EMPTY.trailing_zeros(), 1),
};

const WFIFO: u64 = 0x00;
const RFIFO: u64 = 0x04;
const CONTROL: u64 = 0x08;
const STATUS: u64 = 0x0c;
const MISC: u64 = 0x10;
/// `CONTROL`: transmitter and receiver on; RTS and CTS not used; errors cleared while it is set;
/// interrupts.
const TX_ON: u32 = 1 << 12;
const RX_ON: u32 = 1 << 13;
const TWO_WIRES: u32 = 1 << 15;
const CLEAR_ERRORS: u32 = 1 << 24;
const RX_INTERRUPT: u32 = 1 << 27;
const TX_INTERRUPT: u32 = 1 << 28;
/// `STATUS`
const RX_EMPTY: u32 = 1 << 20;
const TX_FULL: u32 = 1 << 21;
const TX_EMPTY: u32 = 1 << 22;
const BUSY: u32 = 1 << 25;
/// `MISC`: interrupts at the first received byte, and when fewer than 32 are left to send; the
/// FIFO has 64 at least.
const LEVELS: u32 = 32 << 8 | 1;
const LEVELS_MASK: u32 = 0xffff;

impl Uart {
    /// Enables sending, for start-up. What the firmware has set besides stays.
    pub fn open(self) {
        self.0.write(CONTROL, self.0.read(CONTROL) | TX_ON);
    }

    /// Starts interrupts, at the first received byte. Format and speed stay as the firmware has set
    /// them.
    pub fn start(self) {
        let kept = self.0.read(CONTROL) & !(RX_INTERRUPT | TX_INTERRUPT);
        let on = kept | TX_ON | RX_ON | TWO_WIRES;
        self.0.write(CONTROL, on | CLEAR_ERRORS);
        self.0.write(CONTROL, on & !CLEAR_ERRORS);
        let misc = self.0.read(MISC) & !LEVELS_MASK;
        self.0.write(MISC, misc | LEVELS);
        self.ask(false, true);
    }

    /// Whether there is room for a byte.
    #[inline]
    pub fn has_space(self) -> bool {
        self.0.read(STATUS) & TX_FULL == 0
    }

    /// Sends a byte for which there is room.
    #[inline]
    pub fn send(self, byte: u8) {
        self.0.write(WFIFO, u32::from(byte));
    }

    /// Receives a byte, if there is one.
    #[inline]
    pub fn receive(self) -> Option<u8> {
        (self.0.read(STATUS) & RX_EMPTY == 0).then(|| self.0.read(RFIFO) as u8)
    }

    /// Enables the interrupts for room in the transmit FIFO and for received bytes, or disables
    /// them.
    pub fn ask(self, space: bool, input: bool) {
        let space = if space { TX_INTERRUPT } else { 0 };
        let input = if input { RX_INTERRUPT } else { 0 };
        let kept = self.0.read(CONTROL) & !(RX_INTERRUPT | TX_INTERRUPT);
        self.0.write(CONTROL, kept | space | input);
    }

    /// Whether all bytes have been sent.
    pub fn is_idle(self) -> bool {
        self.0.read(STATUS) & (TX_EMPTY | BUSY) == TX_EMPTY
    }
}
