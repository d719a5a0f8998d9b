//! The protocols between pCPUs whose code at EL2 is bound to its hardware, each in the same steps and with the same
//! orders: mailboxes (`el2/src/mailbox.rs`), waking the drainer (`el2/src/service.rs`), room in a stream
//! (`core/src/pl011.rs`), and requests to the owner of an interrupt (`core/src/vgic`).

use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

/// A mailbox and the SGI that makes its pCPU look.
#[derive(Debug)]
pub struct Mailbox {
    word: AtomicU32,
    /// The SGI is pending at the receiver's interface.
    sgi: AtomicBool,
}

impl Default for Mailbox {
    fn default() -> Self {
        Self {
            word: AtomicU32::new(0),
            sgi: AtomicBool::new(false),
        }
    }
}

impl Mailbox {
    /// Sends a message.
    pub fn send(&self, message: u32) {
        if self.word.fetch_or(message, Ordering::AcqRel) & message == 0 {
            // The barrier before the SGI, and the SGI. The interrupt controller is no memory: it forgets nothing.
            self.sgi.swap(true, Ordering::AcqRel);
        }
    }

    /// The receiver takes the SGI, if it is pending, and with it the messages.
    pub fn receive(&self) -> u32 {
        if !self.sgi.swap(false, Ordering::AcqRel) {
            return 0;
        }
        self.word.swap(0, Ordering::AcqRel)
    }
}

/// The mark that says that the drainer will look again by itself.
#[derive(Debug)]
pub struct Awake(AtomicBool);

impl Default for Awake {
    fn default() -> Self {
        Self(AtomicBool::new(true))
    }
}

impl Awake {
    /// A producer has added something; `true` if it has to send a message.
    pub fn wake(&self) -> bool {
        fence(Ordering::SeqCst);
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// The drainer has found nothing: it goes to sleep unless a second look finds something.
    pub fn sleep(&self, look: impl FnOnce() -> bool) -> bool {
        self.0.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !look()
    }
}

/// A producer that waits for room in a stream.
#[derive(Debug)]
pub struct WantsRoom(AtomicU32);

impl Default for WantsRoom {
    fn default() -> Self {
        Self(AtomicU32::new(0))
    }
}

impl WantsRoom {
    /// The producer has found no room and leaves a mark; `true` if there is room after all.
    pub fn want(&self, room: impl FnOnce() -> bool) -> bool {
        self.0.swap(1, Ordering::AcqRel);
        room()
    }

    /// The consumer has made room; `true` if the producer has to be told.
    pub fn made(&self) -> bool {
        self.0.swap(0, Ordering::AcqRel) != 0
    }
}

/// An interrupt whose owner alone moves it to its list registers, while others make it pending, take that back, or ask
/// what became of it.
#[derive(Debug)]
pub struct Owned {
    latch: AtomicU32,
    clear: AtomicU32,
    asked: AtomicU32,
    answered: AtomicU32,
    shown: AtomicU32,
}

impl Default for Owned {
    fn default() -> Self {
        let zero = || AtomicU32::new(0);
        Self {
            latch: zero(),
            clear: zero(),
            asked: zero(),
            answered: zero(),
            shown: zero(),
        }
    }
}

impl Owned {
    /// Makes it pending.
    pub fn post(&self) {
        self.latch.fetch_or(1, Ordering::SeqCst);
    }

    /// Takes back what is pending: first the latch, then the request to whoever has taken it from there.
    pub fn clear(&self) {
        self.latch.fetch_and(!1, Ordering::SeqCst);
        self.clear.fetch_or(1, Ordering::SeqCst);
    }

    /// Asks what the owner has; the ticket.
    pub fn ask(&self) -> u32 {
        self.asked.fetch_add(1, Ordering::SeqCst).wrapping_add(1)
    }

    /// The answer to a ticket, if it has come: pending in the owner's list register, or in the latch.
    pub fn answer(&self, ticket: u32) -> Option<bool> {
        let ahead = ticket.wrapping_sub(self.answered.load(Ordering::Acquire));
        let come = ahead == 0 || ahead > u32::MAX / 2;
        come.then(|| {
            (self.shown.load(Ordering::SeqCst) | self.latch.load(Ordering::SeqCst)) & 1 != 0
        })
    }

    /// The owner looks. `held`: it is pending in its list register; what it is then.
    pub fn look(&self, held: bool) -> bool {
        let ticket = self.asked.load(Ordering::Acquire);
        let cleared = self.clear.swap(0, Ordering::SeqCst) & 1 != 0;
        let mut held = held && !cleared;
        if self.latch.load(Ordering::SeqCst) & 1 != 0 {
            // It believes only what it has really cleared.
            held |= self.latch.fetch_and(!1, Ordering::SeqCst) & 1 != 0;
        }
        self.shown.store(u32::from(held), Ordering::SeqCst);
        self.answered.store(ticket, Ordering::Release);
        held
    }
}
