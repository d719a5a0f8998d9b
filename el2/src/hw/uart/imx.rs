//! The UART of NXP's i.MX (IMX8MPRM, chapter "Universal Asynchronous Receiver/Transmitter").

use bulkhead_abi::plan::UartKind;

use super::port::{Early, Uart};

/// The number of this kind of UART in the plan.
pub const KIND: UartKind = UartKind::Imx;
/// The registers for [`Early`]: UTS, UTXD and USR2.
pub const EARLY: Early = Early {
    full: (UTS, TXFULL.trailing_zeros(), 1),
    data: UTXD,
    idle: (USR2, TXDC.trailing_zeros(), 1),
};

const URXD: u64 = 0x00;
const UTXD: u64 = 0x40;
const UCR1: u64 = 0x80;
const UCR2: u64 = 0x84;
const UCR3: u64 = 0x88;
const UCR4: u64 = 0x8c;
const UFCR: u64 = 0x90;
const USR2: u64 = 0x98;
const UTS: u64 = 0xb4;
/// `UCR1`: on; interrupts by the levels of the FIFOs.
const UARTEN: u32 = 1;
const RRDYEN: u32 = 1 << 9;
const TRDYEN: u32 = 1 << 13;
/// `UCR2`: not in reset (SRST), receiver and transmitter on; controls that wait for other devices:
/// RTSEN and ATEN, and the RTS pin unless IRTS.
const ON: u32 = 0b111;
const WAITS: u32 = 1 << 3 | 1 << 4 | 1 << 15;
const IRTS: u32 = 1 << 14;
/// `UCR3`: interrupt enables (DTREN, PARERREN, FRAERREN, RXDSEN, AIRINTEN, AWAKEN, DTRDEN, ACIEN).
const UCR3_INTERRUPTS: u32 = 0x3879;
/// `UCR4`: all bits except CTSTL enable interrupts, or belong to the infrared mode.
const CTSTL: u32 = 0x3f << 10;
/// `UFCR`: RFDIV and DCEDTE, which firmware has set; interrupts at the first received byte, and
/// when one byte is left to send.
const UFCR_KEPT: u32 = 0xf << 6;
const LEVELS: u32 = 2 << 10 | 1;
const RDR: u32 = 1;
const TXDC: u32 = 1 << 3;
const TXFULL: u32 = 1 << 4;

impl Uart {
    /// Enables sending, for start-up. After a reset the UART does not send, and not every board has
    /// had firmware.
    pub fn open(self) {
        self.0.write(UCR1, self.0.read(UCR1) | UARTEN);
        self.0.write(UCR2, self.0.read(UCR2) | ON | IRTS);
    }

    /// Starts interrupts, at the first received byte, so that the aging timer is not needed. No
    /// DMA, no loopback.
    pub fn start(self) {
        self.0.write(UCR1, UARTEN);
        let control = self.0.read(UCR2) & !WAITS;
        self.0.write(UCR2, control | ON | IRTS);
        self.0.write(UCR3, self.0.read(UCR3) & !UCR3_INTERRUPTS);
        self.0.write(UCR4, self.0.read(UCR4) & CTSTL);
        self.0.write(UFCR, self.0.read(UFCR) & UFCR_KEPT | LEVELS);
        self.0.write(UTS, 0);
        self.0.write(UCR1, UARTEN | RRDYEN);
    }

    /// Whether there is room for a byte.
    #[inline]
    pub fn has_space(self) -> bool {
        self.0.read(UTS) & TXFULL == 0
    }

    /// Sends a byte for which there is room.
    #[inline]
    pub fn send(self, byte: u8) {
        self.0.write(UTXD, u32::from(byte));
    }

    /// Receives a byte, if there is one.
    #[inline]
    pub fn receive(self) -> Option<u8> {
        (self.0.read(USR2) & RDR != 0).then(|| self.0.read(URXD) as u8)
    }

    /// Enables the interrupts for room in the transmit FIFO and for received bytes, or disables
    /// them.
    pub fn ask(self, space: bool, input: bool) {
        let space = if space { TRDYEN } else { 0 };
        let input = if input { RRDYEN } else { 0 };
        self.0.write(UCR1, UARTEN | space | input);
    }

    /// Whether all bytes have been sent.
    pub fn is_idle(self) -> bool {
        self.0.read(USR2) & TXDC != 0
    }
}
