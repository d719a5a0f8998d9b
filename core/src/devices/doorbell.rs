//! Rate limiting of a doorbell (`docs/adr/0019-doorbells.md`): its interrupt is made pending at
//! most once in a time that the plan says, so a VM that rings without end takes no more than that
//! of the receiver's time.
//!
//! Any vCPU of the ringing VM may use the doorbell, on any pCPU, concurrently. A ring is either
//! heard at once, or it waits and a vCPU that has rung gets the time at which to look again: no
//! ring is lost. Times are values of the physical counter.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// A doorbell. The first ring is heard at once.
#[derive(Debug)]
pub struct Doorbell {
    /// The time from which on a ring may be heard.
    open: AtomicU64,
    /// Whether a ring waits for that time.
    waits: AtomicBool,
}

/// Result of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// The interrupt has to be made pending.
    Heard,
    /// The ring came too early. From this time on, the caller has to call [`Doorbell::look`].
    Later(u64),
}

impl Default for Doorbell {
    fn default() -> Self {
        Self::new()
    }
}

impl Doorbell {
    /// A doorbell that has not been rung.
    pub const fn new() -> Self {
        Self {
            open: AtomicU64::new(0),
            waits: AtomicBool::new(false),
        }
    }

    /// Rings the doorbell, which is heard at most once in `apart` ticks. If it is too early, the
    /// ring waits.
    pub fn ring(&self, now: u64, apart: u64) -> Rung {
        let rung = self.try_ring(now, apart);
        if rung == Rung::Heard {
            return rung;
        }
        self.waits.swap(true, SeqCst);
        Rung::Later(self.open.load(SeqCst))
    }

    /// Rings the doorbell for a caller that rings again if it is too early, so the ring does not
    /// wait.
    pub fn try_ring(&self, now: u64, apart: u64) -> Rung {
        if !self.begin(now, apart) {
            return Rung::Later(self.open.load(SeqCst));
        }
        // A ring that waits is heard together with this one, and so is what was written before it:
        // hence a swap, which reads.
        self.waits.swap(false, SeqCst);
        Rung::Heard
    }

    /// Delivers a ring that waits, if its time has come. `None` if no ring waits.
    pub fn look(&self, now: u64, apart: u64) -> Option<Rung> {
        if !self.waits.load(SeqCst) {
            return None;
        }
        Some(self.try_ring(now, apart))
    }

    /// Whether a ring may be heard now; if so, starts the time in which no other may.
    fn begin(&self, now: u64, apart: u64) -> bool {
        let open = self.open.load(SeqCst);
        let next = now.saturating_add(apart);
        now >= open
            && self
                .open
                .compare_exchange(open, next, SeqCst, SeqCst)
                .is_ok()
    }
}
