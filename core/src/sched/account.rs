//! Accounting of the time of a vCPU on its pCPU.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Number of classes of a latency histogram: class `n` counts waits of 2^(n-1) to 2^n - 1 ticks,
/// class 0 those of 0 ticks.
pub const CLASSES: usize = 40;

/// Run and wait times of a vCPU, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Account {
    /// Time at which it came to this pCPU (physical counter).
    pub since: u64,
    /// Time for which it ran.
    pub ran: u64,
    /// Time for which it was ready and did not run: stolen time in PV time (DEN0057A, 3).
    pub stolen: u64,
    /// Longest wait from being woken to running.
    pub longest: u64,
    /// Number of turns.
    pub turns: u64,
    /// Number of times that its budget or cap was used up.
    pub overruns: u64,
    /// Number of times that it was moved to another pCPU.
    pub moves: u64,
    /// Histogram of the waits from being woken to running.
    pub waits: [u32; CLASSES],
}

impl Account {
    /// An empty account of a vCPU that comes to a pCPU when the counter reads `now`.
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

    /// Counts a turn that starts after a wait of `ticks`; `woken` if it is the first since a
    /// wake-up.
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
