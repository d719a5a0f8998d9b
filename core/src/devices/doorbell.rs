//! Rate limiting of a doorbell (`docs/adr/0019-doorbells.md`): its interrupt is made pending at
//! most once in a time that the plan says, which limits how much of the receiver's time a VM takes
//! that rings without end.
//!
//! Any vCPU of the ringing VM may use the doorbell, on any pCPU, concurrently. A ring is either
//! heard at once, or it waits and a vCPU that has rung gets the time at which to look again: no
//! ring is lost. Times are values of the physical counter.

use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

/// A doorbell. The first ring is heard at once.
#[derive(Debug)]
pub struct Doorbell {
    /// The time from which on a ring may be heard.
    open: AtomicU64,
    /// Whether a ring waits for that time.
    waits: AtomicBool,
    /// Ticks from one interrupt to the next, at least.
    apart: AtomicU32,
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
            apart: AtomicU32::new(0),
        }
    }

    /// Sets how many ticks there are from one interrupt to the next, at least, before anybody rings.
    pub fn set_apart(&self, ticks: u32) {
        self.apart.store(ticks, Relaxed);
    }

    /// Keeps a ring for which it was too early. From now on, the caller has to call [`Doorbell::look`].
    pub fn wait(&self) {
        self.waits.swap(true, SeqCst);
    }

    /// Rings the doorbell for a caller that rings again if it is too early, so the ring does not
    /// wait.
    #[inline(always)]
    pub fn try_ring(&self, now: u64) -> Rung {
        if !self.begin(now) {
            return Rung::Later(self.open.load(SeqCst));
        }
        // A ring that waits is heard together with this one, and so is what was written before it:
        // hence a swap, which reads.
        self.waits.swap(false, SeqCst);
        Rung::Heard
    }

    /// Delivers a ring that waits, if its time has come. `None` if no ring waits.
    pub fn look(&self, now: u64) -> Option<Rung> {
        if !self.waits.load(SeqCst) {
            return None;
        }
        Some(self.try_ring(now))
    }

    /// Whether a ring may be heard now; if so, starts the time in which no other may.
    #[inline(always)]
    fn begin(&self, now: u64) -> bool {
        let open = self.open.load(SeqCst);
        let next = now.saturating_add(self.apart.load(Relaxed).into());
        now >= open
            && self
                .open
                .compare_exchange(open, next, SeqCst, SeqCst)
                .is_ok()
    }
}
