//! Instructions that a CPU has executed and that are not in its accounts yet, so that these are not locked for each. They are handed over when there
//! is no more room, at each return to a guest, and before anything else happens to the accounts. Only the thread of the CPU adds some.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Most that wait.
const MOST: usize = 64;

/// Instructions, each by a number that the owner understands.
#[derive(Debug)]
pub struct Pending {
    count: AtomicUsize,
    all: [AtomicUsize; MOST],
}

impl Default for Pending {
    fn default() -> Self {
        Self {
            count: AtomicUsize::new(0),
            all: [const { AtomicUsize::new(0) }; MOST],
        }
    }
}

impl Pending {
    /// Adds an instruction; `true`: there is room for no other one.
    pub fn add(&self, instruction: usize) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        if let Some(place) = self.all.get(count) {
            place.store(instruction, Ordering::Relaxed);
        }
        // Whoever sees the number sees the instructions.
        self.count.store(count + 1, Ordering::Release);
        count + 1 >= MOST
    }

    /// Hands over all of them, in their order.
    pub fn take(&self, mut account: impl FnMut(usize)) {
        let count = self.count.load(Ordering::Acquire);
        for place in self.all.iter().take(count) {
            account(place.load(Ordering::Relaxed));
        }
        self.count.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_handed_over_once_and_in_order() {
        let pending = Pending::default();
        let taken = || {
            let mut all = Vec::new();
            pending.take(|one| all.push(one));
            all
        };
        assert!(taken().is_empty());
        let full: Vec<bool> = (0..MOST).map(|n| pending.add(n)).collect();
        assert_eq!(full.iter().position(|full| *full), Some(MOST - 1));
        assert_eq!(taken(), (0..MOST).collect::<Vec<_>>());
        assert!(taken().is_empty());
        pending.add(7);
        assert_eq!(taken(), [7]);
    }
}
