//! Which devices a service thread has to look at, and whether it sleeps: words that any pCPU changes, without a lock
//! (`docs/internals/locking.md`).

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// The words of a service thread.
#[derive(Debug)]
pub struct Wanted {
    devices: AtomicU64,
    asleep: AtomicBool,
}

impl Default for Wanted {
    fn default() -> Self {
        Self::new()
    }
}

impl Wanted {
    /// No device, and the thread is awake.
    pub const fn new() -> Self {
        Self {
            devices: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
        }
    }

    /// Anybody: the thread has to look at a device (its row in the plan). `true`: it sleeps, and the caller wakes it.
    #[inline(always)]
    #[must_use]
    pub fn want(&self, device: usize) -> bool {
        self.devices
            .fetch_or(1u64.wrapping_shl(device as u32), Ordering::Release);
        // The device is marked before this load, and the thread says that it sleeps before it looks at the marks: one of the two sees
        // the other.
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed)
    }

    /// Service thread: takes the devices, a bit for each.
    pub fn take(&self) -> u64 {
        if self.devices.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.devices.swap(0, Ordering::Acquire)
    }

    /// Service thread: whether it may sleep. Whoever wants it from here on wakes it.
    #[must_use]
    pub fn sleep(&self) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.devices.load(Ordering::Relaxed) == 0 {
            return true;
        }
        self.asleep.store(false, Ordering::Relaxed);
        false
    }

    /// Service thread: it runs again.
    pub fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_a_thread_that_sleeps_wakes_it_once() {
        let wanted = Wanted::new();
        assert!(!wanted.want(3), "it is awake, and looks by itself");
        assert!(!wanted.sleep(), "there is something to do");
        assert_eq!(wanted.take(), 1 << 3);
        assert!(wanted.sleep());
        assert!(wanted.want(63));
        assert!(!wanted.want(0), "it has been woken");
        wanted.awake();
        assert_eq!(wanted.take(), 1 << 63 | 1);
        assert_eq!(wanted.take(), 0);
    }
}
