//! The mark of a producer that has found its stream full and waits for space
//! (`docs/internals/locking.md`).

use core::sync::atomic::{AtomicU32, Ordering};

/// Whether the producer waits for space.
#[derive(Debug)]
#[repr(C)]
pub struct WantsSpace(AtomicU32);

impl Default for WantsSpace {
    fn default() -> Self {
        Self::new()
    }
}

impl WantsSpace {
    /// The mark of a producer that does not wait.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Sets the mark, because the producer has found no space. It must then look a second time: the
    /// consumer may have made space before it could see the mark.
    pub fn want(&self) {
        self.0.swap(1, Ordering::AcqRel);
    }

    /// Clears the mark, because the producer does not want to be told any more.
    pub fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Called by the consumer after it has made space. `true`: the producer must be told.
    pub fn made(&self) -> bool {
        self.0.swap(0, Ordering::AcqRel) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_space_is_told_once() {
        let wants = WantsSpace::new();
        assert!(!wants.made());
        wants.want();
        assert!(wants.made());
        assert!(!wants.made());
        wants.want();
        wants.forget();
        assert!(!wants.made());
    }
}
