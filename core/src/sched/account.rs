//! What a vCPU has had of its pCPU.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Classes of a latency histogram: class `n` counts waits of 2^(n-1) ticks up to 2^n - 1, class 0 those of none.
pub const CLASSES: usize = 40;

/// How long a vCPU ran and waited. Times in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Account {
    /// When it came to this pCPU (physical counter).
    pub since: u64,
    /// It ran.
    pub ran: u64,
    /// It was ready and did not run: what PV time calls stolen (DEN0057A, 3).
    pub stolen: u64,
    /// Longest wait from being woken to running.
    pub longest: u64,
    /// Turns.
    pub turns: u64,
    /// Its budget or cap was used up while it had more to do.
    pub overruns: u64,
    /// Times that it was moved to another pCPU.
    pub moves: u64,
    /// Waits from being woken to running, by length.
    pub waits: [u32; CLASSES],
}

impl Account {
    /// Nothing yet, of a vCPU that comes to a pCPU when the counter reads `now`.
    pub const fn new(now: u64) -> Self {
        Self {
            since: now,
            ran: 0,
            stolen: 0,
            longest: 0,
            turns: 0,
            overruns: 0,
            moves: 0,
            waits: [0; CLASSES],
        }
    }

    /// A turn starts after a wait, the first one after it was woken or a later one.
    #[inline(always)]
    pub(super) fn turn(&mut self, ticks: u64, woken: bool) {
        self.turns = self.turns.wrapping_add(1);
        if woken {
            self.woken(ticks);
        }
    }

    #[inline(never)]
    fn woken(&mut self, ticks: u64) {
        self.longest = self.longest.max(ticks);
        let class =
            (u64::BITS.wrapping_sub(ticks.leading_zeros()) as usize).min(CLASSES.wrapping_sub(1));
        if let Some(count) = self.waits.get_mut(class) {
            *count = count.saturating_add(1);
        }
    }
}

impl Default for Account {
    fn default() -> Self {
        Self::new(0)
    }
}
