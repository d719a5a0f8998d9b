//! State that any vCPU of a VM may change, one at a time, without waiting: a vCPU that finds the
//! state in use returns and tries again later.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

/// A value that one pCPU uses at a time.
#[derive(Debug)]
#[repr(C)]
pub struct Claim<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: [R-CLAIM] only the pCPU that has set `taken` reaches the value, and only one can have set
// it.
unsafe impl<T: Send> Sync for Claim<T> {}

impl<T> Claim<T> {
    /// Returns a value that is not in use.
    pub const fn new(value: T) -> Self {
        Self {
            taken: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Uses the value, if nobody else does at this moment. `act` must be short: others retry until
    /// it is done.
    #[inline(always)]
    pub fn try_use<R>(&self, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        if self.taken.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: [R-CLAIM] `taken` was false and is true now because this pCPU has set it.
        let result = act(unsafe { &mut *self.value.get() });
        self.taken.store(false, Ordering::Release);
        Some(result)
    }
}
