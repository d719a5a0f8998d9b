//! Which devices a service thread has to look at, and whether it sleeps: words that any pCPU changes, without a lock
//! (`docs/internals/locking.md`).

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// The words of a service thread.
#[derive(Debug)]
pub struct PendingDevices {
    devices: AtomicU64,
    asleep: AtomicBool,
}

impl Default for PendingDevices {
    fn default() -> Self {
        Self::new()
    }
}

impl PendingDevices {
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
    pub fn mark(&self, device: usize) -> bool {
        self.devices
            .fetch_or(1u64.wrapping_shl(device as u32), Ordering::Release);
        // The device is marked before this load, and the thread says that it sleeps before it looks at the marks: one of the two sees
        // the other.
        fence(Ordering::SeqCst);
        let sleeps = self.asleep.load(Ordering::Relaxed);
        if sleeps {
            // Until it runs it need not be woken again, however long that takes and however often somebody marks a device. A store that comes late,
            // when it sleeps once more, is followed by a message that wakes it all the same.
            self.asleep.store(false, Ordering::Relaxed);
        }
        sleeps
    }

    /// Service thread: takes the devices, a bit for each.
    pub fn take(&self) -> u64 {
        if self.devices.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.devices.swap(0, Ordering::Acquire)
    }

    /// Service thread: whether it may sleep. Whoever marks a device from here on wakes it.
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
    fn who_marks_a_device_of_a_thread_that_sleeps_wakes_it_once() {
        let pending = PendingDevices::new();
        assert!(!pending.mark(3), "it is awake, and looks by itself");
        assert!(!pending.sleep(), "there is something to do");
        assert_eq!(pending.take(), 1 << 3);
        assert!(pending.sleep());
        assert!(pending.mark(63));
        assert!(!pending.mark(0), "it has been woken");
        pending.awake();
        assert_eq!(pending.take(), 1 << 63 | 1);
        assert_eq!(pending.take(), 0);
    }
}
