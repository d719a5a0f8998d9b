//! Which producers may have something for a consumer: one bit for each, so that the consumer does not look at all of them.

use core::sync::atomic::{AtomicU64, Ordering, fence};

/// A bit for each producer that has added something since the consumer took the bits.
#[derive(Debug)]
#[repr(transparent)]
pub struct Said(AtomicU64);

impl Default for Said {
    fn default() -> Self {
        Self::new()
    }
}

impl Said {
    /// No producer has added anything.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Called by producer `n` after it has added something, and before it [wakes](super::Awake::wake) the consumer.
    pub fn say(&self, n: usize) {
        let bit = 1u64.wrapping_shl(n as u32);
        // Either the consumer, which has taken the bit, finds what was added, or this finds the bit clear: see [`Self::take`].
        fence(Ordering::SeqCst);
        if self.0.load(Ordering::Relaxed) & bit == 0 {
            self.0.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Called by the consumer before it looks at those producers whose bits it gets, and at those who had something left.
    pub fn take(&self) -> u64 {
        if self.0.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let said = self.0.swap(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_said_something_is_told_once() {
        let said = Said::new();
        assert_eq!(said.take(), 0);
        for n in [63, 0, 5, 5] {
            said.say(n);
        }
        assert_eq!(said.take(), 1 << 63 | 1 << 5 | 1);
        assert_eq!(said.take(), 0);
    }
}
