//! Arbitration of the stage 2 root of a GPPT VM between the pCPUs that revoke it to reclaim its
//! pCPU and that pCPU, which restores it (`docs/adr/0016-gppt.md`). There is one word for each pCPU
//! that can be reclaimed.
//!
//! A pCPU that wants to reclaim another leaves its message first. Then it revokes the root and
//! sends the SGI, if no other pCPU is doing so; otherwise it sets `AGAIN`, and the pCPU that is
//! revoking the root sends the SGI again. The reclaimed pCPU restores the root when no other pCPU
//! is revoking it, and reads its messages afterwards. No pCPU waits.

use core::sync::atomic::{AtomicU32, Ordering::AcqRel, Ordering::Acquire};

/// A pCPU is changing the root: revoking or restoring it.
const HELD: u32 = 1;
/// Another pCPU has asked meanwhile: the SGI has to be sent again.
const AGAIN: u32 = 2;
/// The root is revoked, or will be in a moment.
const GONE: u32 = 4;

/// The claim on the stage 2 root of a pCPU's GPPT VM.
#[derive(Debug)]
pub struct Stage2Claim(AtomicU32);

impl Default for Stage2Claim {
    fn default() -> Self {
        Self::new()
    }
}

impl Stage2Claim {
    /// The root is in place.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Claims the root for a pCPU that wants to reclaim this one and has left a message. `true`:
    /// the caller has to revoke the root, and then, until [`Self::taken`], to [`Self::serve`] and
    /// send the SGI. `false`: either another pCPU is revoking the root and will send the SGI, or
    /// this pCPU is restoring the root and reads its messages afterwards.
    pub fn take(&self) -> bool {
        self.0.fetch_or(HELD | AGAIN | GONE, AcqRel) & HELD == 0
    }

    /// Releases the claim after the SGI has been sent. `false`: another pCPU has asked meanwhile,
    /// and the SGI has to be sent once more before the next call.
    pub fn taken(&self) -> bool {
        self.0
            .compare_exchange(HELD | GONE, GONE, AcqRel, Acquire)
            .is_ok()
    }

    /// Clears the mark of the pCPUs that have asked so far. Called before the SGI is sent.
    pub fn serve(&self) {
        self.0.fetch_and(!AGAIN, AcqRel);
    }

    /// Whether the root is revoked or just being revoked, so that a fault of the guest may be due
    /// to that.
    pub fn is_gone(&self) -> bool {
        self.0.load(Acquire) != 0
    }

    /// Restores the root with `restore`. Called on the reclaimed pCPU itself, which reads its
    /// messages afterwards. `false`: another pCPU is revoking the root, and the caller has to try
    /// again.
    pub fn give(&self, restore: impl FnOnce()) -> bool {
        if self.0.fetch_or(HELD, AcqRel) & HELD != 0 {
            return false;
        }
        restore();
        // A pCPU that has set a mark left its message before, so clearing the mark loses nothing.
        self.0.swap(0, AcqRel);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_comes_back_only_when_nobody_is_at_it() {
        let claim = Stage2Claim::new();
        assert!(!claim.is_gone());
        assert!(claim.take());
        claim.serve();
        assert!(claim.is_gone());
        assert!(!claim.give(|| panic!("somebody is at it")));
        assert!(claim.taken());
        assert!(claim.is_gone());
        let mut restored = false;
        assert!(claim.give(|| restored = true));
        assert!(restored && !claim.is_gone());
    }

    #[test]
    fn who_comes_second_is_served_by_the_first() {
        let claim = Stage2Claim::new();
        assert!(claim.take());
        claim.serve();
        assert!(!claim.take());
        assert!(!claim.taken(), "another SGI");
        claim.serve();
        assert!(claim.taken());
        assert!(claim.take(), "it is free again");
    }

    #[test]
    fn what_comes_while_it_is_given_back_leaves_it_free() {
        let claim = Stage2Claim::new();
        assert!(claim.take());
        claim.serve();
        assert!(claim.taken());
        assert!(claim.give(|| assert!(!claim.take(), "who comes now finds it held")));
        assert!(!claim.is_gone());
    }
}
