//! Cadence's UART, as the Zynq UltraScale+ has it (UG1085, chapter "UART Controller"; UG1087, module "UART").
//!
//! Bits of its interrupt status stay set until they are written, whatever the FIFO does meanwhile. So the bit of a received
//! byte is cleared only where the FIFO was seen empty, and looked at again, and that of an empty FIFO before each byte that goes
//! into it: then neither can be lost, and what is left in the FIFO asks again.

use bulkhead_abi::plan::UartKind;

use super::{Early, Uart};

/// What it is in the plan.
pub const KIND: UartKind = UartKind::Cadence;
/// As [`Early`] says: Channel_sts_reg0 and TX_RX_FIFO0.
pub const EARLY: Early = Early {
    full: (STATUS, TX_FULL.trailing_zeros()),
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
    /// Lets it send, for start-up. After a reset it does not, and not every board has had firmware.
    pub fn open(self) {
        self.0.write(CONTROL, RX_ON | TX_ON | NO_BREAK);
    }

    /// An interrupt at the first received byte: no time-out is needed. Bytes from before are dropped; what is being sent is not.
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

    /// A received byte.
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

    /// Asks for an interrupt when the transmit FIFO is empty, or no longer.
    pub fn ask_for_space(self, on: bool) {
        self.0.write(if on { ENABLE } else { DISABLE }, TX_EMPTY);
    }

    /// Everything has left.
    pub fn is_idle(self) -> bool {
        self.0.read(STATUS) & (TX_EMPTY | TX_ACTIVE) == TX_EMPTY
    }
}
