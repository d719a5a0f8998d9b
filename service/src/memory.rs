//! Memory that this VM shares with EL2, or that outlives it: windows of devices, the page with the
//! news, the blocks of a disk.

/// An access is not wholly inside the memory, or a word is not aligned to its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside;

/// A piece of memory that others write, too; offsets are from its start.
///
/// Words are accessed in one piece and exactly once each, in the order of the program as far as
/// this VM's own accesses to the same word go (`Relaxed`). Where another order is needed, callers
/// use fences of [`core::sync::atomic`], so that an implementation has no orders to get wrong.
/// Copies may have any order and any width.
///
/// It is a handle: a clone names the same memory.
pub trait Memory: Clone {
    /// Its length in bytes.
    fn bytes(&self) -> u64;

    /// Loads 16 bits.
    fn load16(&self, at: u64) -> Result<u16, Outside>;
    /// Loads 32 bits.
    fn load32(&self, at: u64) -> Result<u32, Outside>;
    /// Loads 64 bits.
    fn load64(&self, at: u64) -> Result<u64, Outside>;
    /// Stores 16 bits.
    fn store16(&self, at: u64, value: u16) -> Result<(), Outside>;
    /// Stores 32 bits.
    fn store32(&self, at: u64, value: u32) -> Result<(), Outside>;
    /// Stores 64 bits.
    fn store64(&self, at: u64, value: u64) -> Result<(), Outside>;
    /// Stores 64 bits and returns what was there, as one access.
    fn swap64(&self, at: u64, value: u64) -> Result<u64, Outside>;

    /// Copies bytes out of the memory.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Outside>;
    /// Copies bytes into the memory.
    fn write(&self, at: u64, from: &[u8]) -> Result<(), Outside>;
    /// Sets `bytes` bytes to zero.
    fn zero(&self, at: u64, bytes: u64) -> Result<(), Outside>;
    /// Copies `bytes` bytes from here into another memory, or into another part of this one.
    fn copy(&self, at: u64, to: &Self, to_at: u64, bytes: u64) -> Result<(), Outside>;

    /// Whether `bytes` bytes from `at` on are inside.
    fn holds(&self, at: u64, bytes: u64) -> bool {
        at.checked_add(bytes).is_some_and(|end| end <= self.bytes())
    }
}
