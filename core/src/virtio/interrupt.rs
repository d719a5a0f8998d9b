//! InterruptStatus of a device (VIRTIO 1.2, 4.2.2): set by the service thread, cleared by vCPUs that write InterruptACK, and read by all from the page of
//! registers without an exit.

use core::sync::atomic::{AtomicU32, Ordering, fence};

/// The device has used a buffer.
pub const USED: u32 = 1;
/// The config, or the status, has changed.
pub const CONFIG: u32 = 2;

/// How often a change is published again because the other side has changed the word meanwhile. A vCPU needs an exit for each
/// change, so that more than two are not seen.
const TRIES: usize = 8;

/// The copy in the page of registers.
pub trait Copied {
    /// Writes it.
    fn store(&self, bits: u32);
}

/// The word that counts.
#[derive(Debug)]
pub struct InterruptStatus(AtomicU32);

impl Default for InterruptStatus {
    fn default() -> Self {
        Self::new()
    }
}

impl InterruptStatus {
    /// No bit is set.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Sets bits. `true`: one of them was clear, so the interrupt is to be made pending, behind [`Self::publish`].
    #[must_use]
    pub fn set(&self, bits: u32) -> bool {
        let old = self.0.fetch_or(bits, Ordering::AcqRel);
        old & bits != bits
    }

    /// Clears bits.
    pub fn clear(&self, bits: u32) {
        self.0.fetch_and(!bits, Ordering::AcqRel);
    }

    /// Makes the copy true, after a change. `false`: others change the word all the time, and it is to be called again.
    #[must_use]
    pub fn publish(&self, copy: &impl Copied) -> bool {
        (0..TRIES).any(|_| self.publish_once(copy))
    }

    /// Makes the copy true, after a change. `false`: somebody else has changed the word meanwhile, and [`Self::publish`] goes on.
    #[inline(always)]
    #[must_use]
    pub fn publish_once(&self, copy: &impl Copied) -> bool {
        // Two that change the word have one fence before the other's: either that one's copy lies behind this one's, or the second
        // look below sees its change.
        fence(Ordering::SeqCst);
        let bits = self.0.load(Ordering::Relaxed);
        copy.store(bits);
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) == bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Page(AtomicU32);

    impl Copied for Page {
        fn store(&self, bits: u32) {
            self.0.store(bits, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_bit_that_is_set_interrupts_once_until_it_is_cleared() {
        let (status, page) = (InterruptStatus::new(), Page(AtomicU32::new(9)));
        assert!(status.set(USED));
        assert!(!status.set(USED), "the driver has not seen the first");
        assert!(status.set(CONFIG | USED), "one of them is new");
        assert!(status.publish(&page));
        assert_eq!(page.0.load(Ordering::Relaxed), USED | CONFIG);
        status.clear(USED);
        assert!(status.publish(&page));
        assert_eq!(page.0.load(Ordering::Relaxed), CONFIG);
        assert!(status.set(USED));
    }
}
