//! When a doorbell is heard (`docs/adr/0019-doorbells.md`): at most once in a time that the plan says, so that who rings without end takes
//! no more of who hears it.
//!
//! Any vCPU of the VM that rings may use it, on any pCPU, at the same time. A ring is heard at once, or it waits and some vCPU
//! that has rung hears of that time and comes back: none is forgotten. Times are values of the physical counter.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// A doorbell. One that was never rung is heard at once.
#[derive(Debug)]
pub struct Doorbell {
    /// From here on it may be heard.
    open: AtomicU64,
    /// A ring waits for that.
    waits: AtomicBool,
}

/// What has to be done about a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// The interrupt is made pending.
    Heard,
    /// It is too early. From this time on, [`Doorbell::look`].
    Later(u64),
}

impl Default for Doorbell {
    fn default() -> Self {
        Self::new()
    }
}

impl Doorbell {
    /// Nobody has rung it.
    pub const fn new() -> Self {
        Self {
            open: AtomicU64::new(0),
            waits: AtomicBool::new(false),
        }
    }

    /// It is rung; it is heard once in `apart` ticks at most. If it is too early, the ring waits.
    pub fn ring(&self, now: u64, apart: u64) -> Rung {
        let rung = self.try_ring(now, apart);
        if rung == Rung::Heard {
            return rung;
        }
        self.waits.swap(true, SeqCst);
        Rung::Later(self.open.load(SeqCst))
    }

    /// It is rung by somebody who rings again if it is too early.
    pub fn try_ring(&self, now: u64, apart: u64) -> Rung {
        if !self.begin(now, apart) {
            return Rung::Later(self.open.load(SeqCst));
        }
        // One that waits is heard with this one, and so is what was written before it: hence a swap, which reads.
        self.waits.swap(false, SeqCst);
        Rung::Heard
    }

    /// A ring that waits is heard if its time has come. `None`: none waits.
    pub fn look(&self, now: u64, apart: u64) -> Option<Rung> {
        if !self.waits.load(SeqCst) {
            return None;
        }
        Some(self.try_ring(now, apart))
    }

    /// It may be heard now, and not again for a while.
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
