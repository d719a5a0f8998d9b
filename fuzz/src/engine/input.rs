//! Bytes read as numbers, for targets whose input is not a text or a file.

/// Unread part of an input. Behind its end everything is zero.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Reads from the start.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Nothing is left.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `N` bytes.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let count = N.min(self.0.len());
        let (now, rest) = self.0.split_at(count);
        bytes[..count].copy_from_slice(now);
        self.0 = rest;
        bytes
    }

    /// A byte.
    pub fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.bytes())
    }

    /// 16 bits, little-endian.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    /// 32 bits, little-endian.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    /// 64 bits, little-endian.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    /// A number below `limit`, from one byte.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::from(self.u8()) % limit.max(1)
    }

    /// Returns the unread part.
    pub const fn rest(&self) -> &'a [u8] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behind_the_end_everything_is_zero() {
        let mut input = Input::new(&[1, 2, 3]);
        assert_eq!(input.u16(), 0x0201);
        assert_eq!(input.rest(), [3]);
        assert_eq!(input.u32(), 3);
        assert!(input.is_empty());
        assert_eq!((input.u64(), input.below(9)), (0, 0));
    }
}
