//! The mark that says that somebody will look again by itself, so that a producer who adds work
//! need not tell it: the pCPU that drains the console has one (`docs/internals/locking.md`).

use core::sync::atomic::{AtomicBool, Ordering, fence};

/// Whether the consumer will look again without being told.
#[derive(Debug)]
pub struct Awake(AtomicBool);

impl Default for Awake {
    fn default() -> Self {
        Self::new()
    }
}

impl Awake {
    /// The mark of a consumer that has to be told.
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Called by a producer after it has added something. `true`: the consumer must be told.
    pub fn wake(&self) -> bool {
        // Either the consumer's second look finds what was added, or this finds that the mark is
        // clear: see [`Self::sleep`].
        fence(Ordering::SeqCst);
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// Called by the consumer when it has found nothing. It may sleep if it then looks a second
    /// time, at everything, and finds nothing again.
    pub fn sleep(&self) {
        self.0.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Called by the consumer when its second look has found something after all.
    pub fn stay(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the mark is set: somebody has added something since the consumer cleared it.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sleeps_is_told_once() {
        let awake = Awake::new();
        assert!(awake.wake());
        assert!(!awake.wake(), "it looks");
        assert!(awake.is_set());
        awake.sleep();
        assert!(!awake.is_set());
        awake.stay();
        assert!(!awake.wake());
    }
}
