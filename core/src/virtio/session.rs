//! EL2's side of the handshake with a backend: three words of the device page, each with one writer
//! (`docs/adr/0024-shadow-virtqueues.md`). Nothing here waits.

use core::sync::atomic::{Ordering, fence};

use bulkhead_abi::device::device_page as page;

use super::memory::{At, Memory};

/// What the backend has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Nothing that changes anything.
    Nothing,
    /// It has let go of everything older, and can serve: [`Session::begin`] may follow.
    Ready,
    /// It does not serve the device, for this reason of its own.
    Refuses(u32),
    /// It wants another session: [`Session::end`] is to follow.
    WantsRestart,
}

/// A queue as the backend finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRow {
    /// Offset of its descriptor table in the window.
    pub table: u32,
    /// Its size.
    pub size: u16,
    /// Whether the guest has enabled it.
    pub enabled: bool,
    /// Bytes of a slot, and offset of slot 0.
    pub slot_bytes: u32,
    /// Offset of slot 0.
    pub slots: u32,
}

/// The present session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    number: u32,
    live: bool,
}

impl Default for Session {
    fn default() -> Self {
        Self::new()
    }
}

impl Session {
    /// The first one, which is not live.
    pub const fn new() -> Self {
        Self {
            number: 1,
            live: false,
        }
    }

    /// Whether the backend is to serve the queues.
    pub const fn is_live(&self) -> bool {
        self.live
    }

    /// Ends the session. What the backend still does belongs to no session any more; its slots must not be used until it is ready
    /// for the next one.
    pub fn end(&mut self, memory: &impl Memory, window: At) {
        // 0 is "no backend", so that no session has that number.
        self.number = self.number.wrapping_add(1).max(1);
        self.live = false;
        memory.store32(at(window, page::SESSION), self.number);
    }

    /// Writes the words of the session to a device page whose memory was made anew.
    pub fn show(&self, memory: &impl Memory, window: At) {
        memory.store32(at(window, page::SESSION), self.number);
        memory.store32(at(window, page::LIVE), 0);
    }

    /// Looks at what the backend has written.
    pub fn look(&self, memory: &impl Memory, window: At) -> News {
        let read = |offset| memory.load32(at(window, offset));
        if self.live {
            let wants = read(page::RESTART) == self.number;
            return if wants {
                News::WantsRestart
            } else {
                News::Nothing
            };
        }
        if read(page::READY) != self.number {
            return match read(page::REFUSAL) {
                0 => News::Nothing,
                why => News::Refuses(why),
            };
        }
        // It has let go of everything before it wrote this.
        fence(Ordering::Acquire);
        News::Ready
    }

    /// Begins the session, after [`News::Ready`], with rings that are there and empty.
    pub fn begin(
        &mut self,
        features: u64,
        queues: impl Iterator<Item = QueueRow>,
        memory: &impl Memory,
        window: At,
    ) {
        memory.store64(at(window, page::FEATURES), features);
        let mut offset = page::QUEUE;
        for queue in queues {
            let write = |what: usize, value| {
                memory.store32(at(window, offset.wrapping_add(what)), value);
            };
            write(page::QUEUE_TABLE, queue.table);
            write(page::QUEUE_SIZE, queue.size.into());
            write(page::QUEUE_ENABLED, queue.enabled.into());
            write(page::QUEUE_SLOT, queue.slot_bytes);
            write(page::QUEUE_SLOTS, queue.slots);
            offset = offset.wrapping_add(page::QUEUE_STRIDE);
        }
        // All of it, and the rings, before the backend may use them.
        fence(Ordering::Release);
        memory.store32(at(window, page::LIVE), self.number);
        self.live = true;
    }
}

const fn at(window: At, offset: usize) -> At {
    window.plus(offset as u64)
}

#[cfg(test)]
mod tests {
    use super::super::tests::parts::{Ram, WINDOW};
    use super::*;

    /// A guest that resets its device for half a day.
    #[test]
    fn no_session_is_what_a_backend_that_is_not_there_says() {
        let mut session = Session {
            number: u32::MAX,
            live: true,
        };
        let (ram, window) = (Ram::new(), At::new(WINDOW.start));
        session.end(&ram, window);
        assert_eq!(session.look(&ram, window), News::Nothing);
    }
}
