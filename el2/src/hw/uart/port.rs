//! A UART as all kinds have it.

use super::super::mmio::Registers;

/// How `refuse.s` sends its last words: offsets of registers, numbers of bits.
#[derive(Debug)]
pub struct Early {
    /// Where a bit says that there is no room, and which.
    pub full: (u64, u32),
    /// Where bytes go.
    pub data: u64,
    /// Where a bit says whether everything has left, which, and what it is then.
    pub idle: (u64, u32, u32),
}

/// The console UART.
#[derive(Clone, Copy, Debug)]
pub struct Uart(pub Registers);
