//! Ranges of addresses.

/// The addresses from `start` up to `end`, which is excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First address.
    pub start: u64,
    /// First address after the span.
    pub end: u64,
}

impl Span {
    /// A span of `size` bytes from `start`; `None` if it is empty or goes beyond the last address.
    pub const fn new(start: u64, size: u64) -> Option<Self> {
        match start.checked_add(size) {
            Some(end) if size > 0 => Some(Self { start, end }),
            _ => None,
        }
    }

    /// Whether the two spans have an address in common.
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Whether all of `other` is in this span.
    pub const fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Whether `address` is in this span.
    pub const fn has(self, address: u64) -> bool {
        self.start <= address && address < self.end
    }
}

/// Whether `value` is a multiple of `unit`, a power of two.
pub const fn aligned(value: u64, unit: u64) -> bool {
    value & unit.wrapping_sub(1) == 0
}

/// Rounds up to a multiple of `unit`, a power of two; `None` if the result does not fit 64 bits.
pub const fn align_up(value: u64, unit: u64) -> Option<u64> {
    let mask = unit.wrapping_sub(1);
    match value.checked_add(mask) {
        Some(sum) => Some(sum & !mask),
        None => None,
    }
}
