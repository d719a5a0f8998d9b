//! The parts that all kinds of UART have in common.

use super::super::mmio::Registers;

/// The description of a UART with which `refuse.s` sends its last words: offsets of registers,
/// numbers of bits.
#[derive(Debug)]
pub struct Early {
    /// The register and the bit that says whether there is room for a byte, and the bit's value if
    /// there is none.
    pub full: (u64, u32, u32),
    /// The register to which bytes are written.
    pub data: u64,
    /// The register and the bit that says whether all bytes have been sent, and the bit's value
    /// then.
    pub idle: (u64, u32, u32),
}

/// The console UART.
#[derive(Clone, Copy, Debug)]
pub struct Uart(pub Registers);
