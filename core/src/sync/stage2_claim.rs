//! Who may touch the root of a VM's stage 2 while other pCPUs take it away to get its pCPU back (`docs/adr/0016-gppt.md`),
//! one word for each such pCPU.
//!
//! Whoever wants the pCPU leaves its message first. Then it takes the root away, if nobody is doing so, and sends the SGI;
//! or it leaves a mark for the one who is, who then sends the SGI again. The pCPU gives the root back when nobody is at it, and looks for
//! messages afterwards. Nobody waits.

use core::sync::atomic::{AtomicU32, Ordering::AcqRel, Ordering::Acquire};

/// Somebody is at the root.
const HELD: u32 = 1;
/// Somebody else came meanwhile.
const AGAIN: u32 = 2;
/// The root is taken away, or will be in a moment.
const GONE: u32 = 4;

/// See the module.
#[derive(Debug)]
pub struct Stage2Claim(AtomicU32);

impl Default for Stage2Claim {
    fn default() -> Self {
        Self::new()
    }
}

impl Stage2Claim {
    /// The VM has its root.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Another pCPU wants this one and has left a message. `true`: it has to take the root away, and then, until
    /// [`Self::taken`], to [`Self::serve`] and send the SGI. `false`: somebody is at the root and will send the SGI.
    pub fn take(&self) -> bool {
        self.0.fetch_or(HELD | AGAIN | GONE, AcqRel) & HELD == 0
    }

    /// The SGI is sent. `false`: somebody came meanwhile, and it has to be sent once more, before this is asked again.
    pub fn taken(&self) -> bool {
        self.0
            .compare_exchange(HELD | GONE, GONE, AcqRel, Acquire)
            .is_ok()
    }

    /// Forgets the marks of those who came until now. Before the SGI.
    pub fn serve(&self) {
        self.0.fetch_and(!AGAIN, AcqRel);
    }

    /// The root is away, or just being taken: what the guest ran into may be that.
    pub fn is_gone(&self) -> bool {
        self.0.load(Acquire) != 0
    }

    /// The pCPU itself gives the root back by `restore`, and looks for messages afterwards. `false`: somebody is at the root, and
    /// it has to try again.
    pub fn give(&self, restore: impl FnOnce()) -> bool {
        if self.0.fetch_or(HELD, AcqRel) & HELD != 0 {
            return false;
        }
        restore();
        // Whoever left a mark had left a message before.
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
