//! The turn to print a report, which one vCPU has at a time, so that the lines of two reports do
//! not mix.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bulkhead_abi::plan::MAX_VCPUS;

/// The vCPU that has the turn, as its row in the plan plus one, or 0 for none; and the vCPUs that
/// wait for it, one bit for each row.
#[derive(Debug)]
pub struct ReportTurn {
    owner: AtomicUsize,
    waiting: AtomicU64,
}

const _: () = assert!(MAX_VCPUS <= u64::BITS as usize);

impl Default for ReportTurn {
    fn default() -> Self {
        Self::new()
    }
}

impl ReportTurn {
    /// A turn that no vCPU has.
    pub const fn new() -> Self {
        Self {
            owner: AtomicUsize::new(0),
            waiting: AtomicU64::new(0),
        }
    }

    /// Takes the turn for vCPU `id`. Returns whether the vCPU has it now; if not, the next
    /// [`Self::pass`] returns the vCPU as waiting.
    #[inline(always)]
    pub fn take(&self, id: usize) -> bool {
        let mark = 1u64.wrapping_shl(id as u32);
        // Set before the attempt: the vCPU that passes the turn on reads `waiting` after it has
        // cleared `owner`.
        self.waiting.fetch_or(mark, Ordering::SeqCst);
        let id = id.saturating_add(1);
        let found = self
            .owner
            .compare_exchange(0, id, Ordering::SeqCst, Ordering::SeqCst);
        let mine = found.is_ok() || found == Err(id);
        if mine {
            self.waiting.fetch_and(!mark, Ordering::SeqCst);
        }
        mine
    }

    /// Whether no vCPU has the turn: who has had it has said all.
    #[inline(always)]
    pub fn is_free(&self) -> bool {
        self.owner.load(Ordering::SeqCst) == 0
    }

    /// Ends the turn. Returns the vCPUs that wait for it, one bit for each row: they have to be
    /// notified to try again.
    #[inline(always)]
    pub fn pass(&self) -> u64 {
        self.owner.store(0, Ordering::SeqCst);
        self.waiting.swap(0, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_told_when_the_turn_is_over() {
        let turn = ReportTurn::new();
        assert!(turn.take(3));
        assert!(turn.take(3), "it stays its own until it passes it on");
        assert!(!turn.take(0));
        assert!(!turn.take(63));
        assert_eq!(turn.pass(), 1 | 1 << 63);
        assert!(turn.take(63));
        assert_eq!(turn.pass(), 0);
    }
}
