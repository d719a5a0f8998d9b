//! What vCPUs ask of the service thread for a device: words that both sides change, without a lock
//! (`docs/internals/locking.md`). Whoever has asked tells the service thread afterwards.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A vCPU asks the service thread to let go of this queue, or of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// A queue.
    Queue(u16),
    /// The device.
    All,
}

impl Release {
    const fn word(self) -> u32 {
        match self {
            Self::All => ALL,
            Self::Queue(queue) => queue as u32,
        }
    }
}

/// In [`Requests::release`]: which queue.
const WHICH: u32 = 0xffff;
const ALL: u32 = 0xffff;
/// It is asked for.
const ASKED: u32 = 1 << 16;
/// It is done.
const DONE: u32 = 1 << 17;

/// What was asked when a slice began. What is asked meanwhile is for the next one: who does it has to tell who waits for it, and tells by this.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    requests: &'a Requests,
    release: Option<Release>,
}

impl Asked<'_> {
    /// What it is to let go of.
    pub const fn release(&self) -> Option<Release> {
        self.release
    }

    /// It has let go of that.
    pub fn released(&self) {
        if let Some(what) = self.release {
            self.requests.released(what);
        }
    }
}

/// The words. Of new chains there is none: all queues are looked at when the device is.
#[derive(Debug)]
pub struct Requests {
    /// The driver has started the device, or enabled a queue.
    start: AtomicBool,
    release: AtomicU32,
}

impl Default for Requests {
    fn default() -> Self {
        Self::new()
    }
}

impl Requests {
    /// Nothing is asked.
    pub const fn new() -> Self {
        Self {
            start: AtomicBool::new(false),
            release: AtomicU32::new(0),
        }
    }

    /// vCPU: the driver has started the device, or enabled a queue of a device that it drives.
    pub fn start(&self) {
        self.start.store(true, Ordering::Release);
    }

    /// vCPU: asks the service thread to let go. `true`: it has. Otherwise the guest repeats what it did. One vCPU at a time calls
    /// this; what another has asked before is done first.
    pub fn release(&self, what: Release) -> bool {
        let found = self.release.load(Ordering::Acquire);
        if found & ASKED != 0 {
            return false;
        }
        if found == what.word() | DONE {
            self.release.store(0, Ordering::Relaxed);
            return true;
        }
        self.release.store(what.word() | ASKED, Ordering::Release);
        false
    }

    /// Service thread: what it is to let go of. [`Self::released`] follows.
    pub fn asked(&self) -> Option<Release> {
        let found = self.release.load(Ordering::Acquire);
        if found & ASKED == 0 {
            return None;
        }
        Some(match found & WHICH {
            ALL => Release::All,
            queue => Release::Queue(queue as u16),
        })
    }

    /// Service thread: what is asked now, for a slice.
    pub fn look(&self) -> Asked<'_> {
        Asked {
            requests: self,
            release: self.asked(),
        }
    }

    /// Service thread: it has let go, and touches no memory of the queue behind this.
    pub fn released(&self, what: Release) {
        self.release.store(what.word() | DONE, Ordering::Release);
    }

    /// Service thread, while no vCPU uses the registers: the driver begins with new queues. A release that nobody has waited for is
    /// none of these.
    pub fn begin(&self) {
        if self.release.load(Ordering::Relaxed) & DONE != 0 {
            self.release.store(0, Ordering::Relaxed);
        }
    }

    /// Service thread: takes whether the device was started. Everything written before is seen.
    pub fn take_start(&self) -> bool {
        // Nothing to be taken is the usual case.
        self.start.load(Ordering::Relaxed) && self.start.swap(false, Ordering::Acquire)
    }

    /// Service thread: whether anything is asked. Where nothing is, it may sleep.
    pub fn any(&self) -> bool {
        self.start.load(Ordering::Relaxed) || self.release.load(Ordering::Relaxed) & ASKED != 0
    }

    /// Service thread: the driver is to be looked at once more.
    pub fn start_again(&self) {
        self.start.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_asked_for_and_done_once() {
        let requests = Requests::new();
        assert!(!requests.release(Release::All));
        assert!(requests.any());
        assert!(!requests.release(Release::All), "repeated");
        assert_eq!(requests.asked(), Some(Release::All));
        requests.released(Release::All);
        assert_eq!(requests.asked(), None);
        assert!(requests.release(Release::All));
        assert!(
            !requests.release(Release::All),
            "the next one is asked anew"
        );
    }

    #[test]
    fn what_another_has_asked_is_done_first() {
        let requests = Requests::new();
        assert!(!requests.release(Release::Queue(3)));
        assert!(!requests.release(Release::All));
        assert_eq!(requests.asked(), Some(Release::Queue(3)));
        requests.released(Release::Queue(3));
        assert!(!requests.release(Release::All), "that was the other one's");
        assert_eq!(requests.asked(), Some(Release::All));
        requests.released(Release::All);
        assert!(
            !requests.release(Release::Queue(3)),
            "asks again, and loses nothing"
        );
        requests.released(Release::Queue(3));
        assert!(requests.release(Release::Queue(3)));
    }

    /// A guest that does not repeat its write, because it has ended or has jumped elsewhere.
    #[test]
    fn a_release_that_nobody_waits_for_is_no_later_one() {
        let requests = Requests::new();
        assert!(!requests.release(Release::All));
        requests.released(Release::All);
        requests.begin();
        assert!(!requests.release(Release::All), "of queues that are in use");
        requests.begin();
        assert_eq!(
            requests.asked(),
            Some(Release::All),
            "what is asked for stays"
        );
    }

    #[test]
    fn a_start_is_taken_once() {
        let requests = Requests::new();
        assert!(!requests.take_start());
        requests.start();
        assert!(requests.any());
        assert!(requests.take_start());
        assert!(!requests.take_start());
        assert!(!requests.any());
    }
}
