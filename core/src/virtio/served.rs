//! What a backend's VM does with the window of a device: a word that the thread that prepares the VM and the service thread hand to each other, without a
//! lock (`docs/internals/locking.md`). Whoever has changed it tells the other one afterwards.

use core::sync::atomic::{AtomicU32, Ordering};

/// The states, each with who goes on from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Served {
    /// The service thread has let go of it; the VM has not been prepared. Its thread: [`Comes`](Self::Comes).
    Gone = 0,
    /// The VM has been prepared: its memory is zero. The service thread makes the window: [`Up`](Self::Up).
    Comes = 1,
    /// It is there. The VM's thread, when that has ended: [`Leaves`](Self::Leaves).
    Up = 2,
    /// The VM has ended: the service thread is to let go of it. That: [`Gone`](Self::Gone).
    Leaves = 3,
}

/// The word. All zeros is its value at the start.
#[derive(Debug)]
#[repr(transparent)]
pub struct ServedWord(AtomicU32);

impl Default for ServedWord {
    fn default() -> Self {
        Self::new()
    }
}

impl ServedWord {
    /// [`Served::Gone`]
    pub const fn new() -> Self {
        Self(AtomicU32::new(Served::Gone as u32))
    }

    /// Returns what the backend's VM does. What was done before is seen.
    pub fn get(&self) -> Served {
        match self.0.load(Ordering::Acquire) {
            1 => Served::Comes,
            2 => Served::Up,
            3 => Served::Leaves,
            _ => Served::Gone,
        }
    }

    /// The VM's thread: whether nobody uses the VM's memory any more, so that it may be made anew. Otherwise the service thread is asked to let go of it.
    pub fn has_gone(&self) -> bool {
        let mut found = self.0.load(Ordering::Acquire);
        while found != Served::Gone as u32 {
            let asked = self.0.compare_exchange(
                found,
                Served::Leaves as u32,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            // The service thread takes one step from there, or none.
            match asked {
                Ok(_) => return false,
                Err(now) => found = now,
            }
        }
        true
    }

    /// The VM's thread, behind [`Self::has_gone`]: the memory is made anew.
    pub fn comes(&self) {
        self.0.store(Served::Comes as u32, Ordering::Release);
    }

    /// The service thread has made the window. The VM may have ended meanwhile, and stays so.
    pub fn made(&self) {
        self.change(Served::Comes, Served::Up);
    }

    /// The service thread has let go of the window.
    pub fn let_go(&self) {
        self.change(Served::Leaves, Served::Gone);
    }

    fn change(&self, from: Served, to: Served) {
        let (from, to) = (from as u32, to as u32);
        let _changed = self
            .0
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }
}
