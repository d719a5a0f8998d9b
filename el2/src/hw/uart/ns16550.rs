//! A UART of the 8250's family: National's 16550 (PC16550D), and those that have its registers
//! (DesignWare's `DW_apb_uart`, databook; TI's, SPRUIL1; Tegra's; BCM2835's mini UART).
//!
//! It has no bit that says that there is room for one more byte, only one for an empty FIFO: so the
//! room is counted here. One pCPU uses the UART at a time.

use core::sync::atomic::{AtomicU32, Ordering};

use bulkhead_abi::plan::UartKind;

use super::port::{Early, Uart};

/// The number of this kind of UART in the plan.
pub const KIND: UartKind = if cfg!(feature = "uart-8250-words") {
    UartKind::Ns16550Words
} else if cfg!(feature = "uart-8250-spread") {
    UartKind::Ns16550Spread
} else {
    UartKind::Ns16550
};
/// The registers for [`Early`]: LSR and THR.
pub const EARLY: Early = Early {
    full: (LSR * STRIDE, (TX_EMPTY as u32).trailing_zeros(), 0),
    data: DATA * STRIDE,
    idle: (LSR * STRIDE, (TX_DONE as u32).trailing_zeros(), 1),
};

/// Bytes from one register to the next.
const STRIDE: u64 = match KIND {
    UartKind::Ns16550 => 1,
    _ => 4,
};

/// Numbers of registers. RBR and THR.
const DATA: u64 = 0;
const IER: u64 = 1;
/// IIR when it is read, FCR when it is written.
const IIR: u64 = 2;
const FCR: u64 = 2;
const LCR: u64 = 3;
const MCR: u64 = 4;
const LSR: u64 = 5;
/// USR of a `DW_apb_uart`; others have no such interrupt as makes EL2 read it.
const USR: u64 = 31;
/// `IER`: received bytes; the transmit FIFO is empty; errors. Reading LSR ends the last one, and the
/// mini UART sends none of the others without it (errata of BCM2835).
const RX_INTERRUPT: u8 = 1;
const TX_INTERRUPT: u8 = 1 << 1;
const ERROR_INTERRUPT: u8 = 1 << 2;
/// `IIR`: which interrupt; FIFOs are on.
const WHICH: u8 = 0xf;
const TIMEOUT: u8 = 0xc;
const BUSY_DETECTED: u8 = 7;
const FIFOS: u8 = 0xc0;
/// `FCR`: FIFOs on, the receiver's emptied; interrupt at the first byte.
const FIFOS_ON: u8 = 1;
const RX_RESET: u8 = 1 << 1;
/// `LCR`: the registers 0 and 1 are the divisor; a break is sent.
const DIVISOR: u8 = 1 << 7;
const BREAK: u8 = 1 << 6;
/// `MCR`: the other end may send; OUT2, which gates the interrupt where there is such a gate.
const READY: u8 = 0b1011;
/// `LSR`
const RX_READY: u8 = 1;
const TX_EMPTY: u8 = 1 << 5;
const TX_DONE: u8 = 1 << 6;

/// Bytes that an empty FIFO takes: as many as the smallest one of the family has.
const DEPTH: u32 = 8;
/// Bytes that it takes: [`DEPTH`], or 1 if there is none or it is not known yet.
static DEEP: AtomicU32 = AtomicU32::new(1);
/// Bytes that may be sent before the FIFO has to be looked at.
static ROOM: AtomicU32 = AtomicU32::new(0);

impl Uart {
    #[inline(always)]
    fn register(self, number: u64) -> u8 {
        let offset = number.wrapping_mul(STRIDE);
        match KIND {
            UartKind::Ns16550Words => self.0.read(offset) as u8,
            _ => self.0.read8(offset),
        }
    }

    #[inline(always)]
    fn set(self, number: u64, value: u8) {
        let offset = number.wrapping_mul(STRIDE);
        match KIND {
            UartKind::Ns16550Words => self.0.write(offset, u32::from(value)),
            _ => self.0.write8(offset, value),
        }
    }

    /// Does nothing for start-up: firmware has left the UART ready to send.
    pub const fn open(self) {}

    /// Starts interrupts, at the first received byte. LCR is written only if it has to be: a
    /// `DW_apb_uart` that is busy takes no write to it, and interrupts instead.
    pub fn start(self) {
        let line = self.register(LCR);
        if line & (DIVISOR | BREAK) != 0 {
            self.flush();
            self.set(LCR, line & !(DIVISOR | BREAK));
        }
        self.set(IER, 0);
        self.set(FCR, FIFOS_ON | RX_RESET);
        self.set(MCR, READY);
        let deep = self.register(IIR) & FIFOS == FIFOS;
        DEEP.store(if deep { DEPTH } else { 1 }, Ordering::Relaxed);
        self.quiet();
        self.ask(false, true);
    }

    /// Ends an interrupt that is no room and no byte: the one of a `DW_apb_uart` for a write to LCR,
    /// which reading USR ends, and a time-out of its receiver without a byte, which reading one ends.
    /// Reading IIR ends the interrupt for an empty FIFO as well; [`Self::ask`] makes it anew.
    #[inline(always)]
    fn quiet(self) {
        let _: u8 = match self.register(IIR) & WHICH {
            BUSY_DETECTED => self.register(USR),
            TIMEOUT if self.register(LSR) & RX_READY == 0 => self.register(DATA),
            _ => 0,
        };
    }

    /// Whether there is room for a byte.
    #[inline]
    pub fn has_space(self) -> bool {
        if ROOM.load(Ordering::Relaxed) == 0 && self.register(LSR) & TX_EMPTY != 0 {
            ROOM.store(DEEP.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        ROOM.load(Ordering::Relaxed) != 0
    }

    /// Sends a byte for which there is room.
    #[inline]
    pub fn send(self, byte: u8) {
        let room = ROOM.load(Ordering::Relaxed);
        ROOM.store(room.saturating_sub(1), Ordering::Relaxed);
        self.set(DATA, byte);
    }

    /// Receives a byte, if there is one.
    #[inline]
    pub fn receive(self) -> Option<u8> {
        if self.register(LSR) & RX_READY == 0 {
            self.quiet();
            return None;
        }
        Some(self.register(DATA))
    }

    /// Enables the interrupts for an empty transmit FIFO and for received bytes, or disables them.
    /// The first comes also if the FIFO is empty when it is enabled, so it is disabled before.
    pub fn ask(self, space: bool, input: bool) {
        let input = if input { RX_INTERRUPT } else { 0 };
        self.set(IER, ERROR_INTERRUPT | input);
        if space {
            self.set(IER, ERROR_INTERRUPT | input | TX_INTERRUPT);
        }
    }

    /// Whether all bytes have been sent.
    pub fn is_idle(self) -> bool {
        self.register(LSR) & TX_DONE != 0
    }
}
