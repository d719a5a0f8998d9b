//! The protocols between pCPUs whose code is part of more than loom can run, each in the same steps and with the same
//! orders: what vCPUs do about an interrupt that one of them owns (`core/src/vgic`), and how a vCPU goes to another
//! pCPU (`el2/src/balance.rs`).

use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use crate::mailbox::{Kick, Mailboxes};
use crate::vcpu_location::VcpuLocation;

/// An interrupt whose owner alone moves it to its list registers, while others make it pending, take that back, or ask
/// what became of it.
#[derive(Debug)]
pub struct Owned {
    latch: AtomicU32,
    /// The owner may have it.
    holds: AtomicU32,
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
            holds: zero(),
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
        if self.holds.load(Ordering::Acquire) != 0 {
            self.clear.fetch_or(1, Ordering::SeqCst);
        }
    }

    /// Moves it out of the latch: who believes to be its owner believes only what it has really cleared.
    pub fn take(&self) -> bool {
        if self.latch.load(Ordering::SeqCst) & 1 == 0 {
            return false;
        }
        self.holds.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        self.latch.fetch_and(!1, Ordering::SeqCst) & 1 != 0
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
        let held = held && !cleared;
        let held = self.take() || held;
        self.holds.store(u32::from(held), Ordering::Release);
        self.shown.store(u32::from(held), Ordering::SeqCst);
        self.answered.store(ticket, Ordering::Release);
        held
    }
}

/// Something that an owner has to look at, and the mark that says so.
#[derive(Debug)]
pub struct Marked {
    change: AtomicU32,
    busy: AtomicU32,
}

impl Default for Marked {
    /// The mark is there already, and the notification for it on its way.
    fn default() -> Self {
        Self {
            change: AtomicU32::new(0),
            busy: AtomicU32::new(1),
        }
    }
}

impl Marked {
    /// Changes it; `true` if the owner has to be notified.
    pub fn change(&self) -> bool {
        self.change.store(1, Ordering::Release);
        self.busy.fetch_or(1, Ordering::SeqCst) & 1 == 0
    }

    /// The owner looks; whether it has seen the change.
    pub fn look(&self) -> bool {
        self.busy.swap(0, Ordering::SeqCst);
        self.change.load(Ordering::Relaxed) != 0
    }
}

/// An interrupt that one vCPU is about to take while another disables it.
#[derive(Debug)]
pub struct Enabled {
    enable: AtomicU32,
    holds: AtomicU32,
}

impl Default for Enabled {
    fn default() -> Self {
        Self {
            enable: AtomicU32::new(1),
            holds: AtomicU32::new(0),
        }
    }
}

impl Enabled {
    /// The owner takes it; `false`: it is disabled.
    pub fn take(&self) -> bool {
        self.holds.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        self.enable.load(Ordering::Relaxed) != 0
    }

    /// Disables it; `true` if an owner that may have it has to be asked.
    pub fn disable(&self) -> bool {
        self.enable.fetch_and(!1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.holds.load(Ordering::Acquire) != 0
    }
}

/// What claiming an SPI that two vCPUs may believe to be theirs came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// It is in a list register of the vCPU now.
    Taken,
    /// It does not wait, or not for this vCPU; which vCPU has to look instead.
    Gone(Option<usize>),
    /// Another vCPU has it. That one was marked, if it has said so already.
    Theirs,
}

/// An SPI that is not backed by hardware, and two vCPUs: `claim` in `core/src/vgic/fill.rs`, `release` in `sync_lrs.rs`.
#[derive(Debug)]
pub struct Spi {
    latch: AtomicU32,
    held: AtomicU32,
    owns: [AtomicU32; 2],
    holds: [AtomicU32; 2],
}

impl Spi {
    /// Nowhere, with these owners: both while the route is being changed.
    pub fn new(owns: [bool; 2]) -> Self {
        let zero = || AtomicU32::new(0);
        Self {
            latch: zero(),
            held: zero(),
            owns: owns.map(|owns| AtomicU32::new(u32::from(owns))),
            holds: [zero(), zero()],
        }
    }

    /// Makes it pending.
    pub fn post(&self) {
        self.latch.fetch_or(1, Ordering::SeqCst);
    }

    /// A vCPU to which it is routed wants it.
    pub fn claim(&self, vcpu: usize) -> Claimed {
        if self.held.fetch_or(1, Ordering::SeqCst) & 1 != 0 {
            return Claimed::Theirs;
        }
        self.holds[vcpu].store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.owns[vcpu].load(Ordering::Acquire) & 1 != 0
            && self.latch.fetch_and(!1, Ordering::SeqCst) & 1 != 0
        {
            return Claimed::Taken;
        }
        Claimed::Gone(self.release(vcpu))
    }

    /// The vCPU has it no longer; the other one, if that has to look.
    pub fn release(&self, vcpu: usize) -> Option<usize> {
        self.holds[vcpu].store(0, Ordering::Release);
        self.held.fetch_and(!1, Ordering::SeqCst);
        let waits = self.latch.load(Ordering::SeqCst) & 1 != 0;
        let other = 1 - vcpu;
        (waits && self.owns[other].load(Ordering::Acquire) & 1 != 0).then_some(other)
    }
}

/// The SGIs of pCPUs, each pending or not. The interrupt controller is no memory: it forgets nothing.
#[derive(Debug)]
pub struct Sgis<const PCPUS: usize>([AtomicBool; PCPUS]);

impl<const PCPUS: usize> Default for Sgis<PCPUS> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicBool::new(false)))
    }
}

impl<const PCPUS: usize> Sgis<PCPUS> {
    /// The pCPU takes its SGI, if it is pending.
    pub fn take(&self, pcpu: usize) -> bool {
        self.0[pcpu].swap(false, Ordering::AcqRel)
    }
}

impl<const PCPUS: usize> Kick for Sgis<PCPUS> {
    fn kick(&self, pcpu: usize) {
        // The barrier before the SGI, and the SGI.
        self.0[pcpu].swap(true, Ordering::AcqRel);
    }
}

/// Two pCPUs, 0 and 1, vCPU 0 that goes from the first to the second, and what is left for it: messages or SGIs.
#[derive(Debug)]
pub struct Journey {
    /// What nobody but its pCPU touches of the vCPU.
    pub state: loom::cell::UnsafeCell<u32>,
    location: VcpuLocation,
    mailboxes: Mailboxes,
    sgis: Sgis<2>,
    /// The second pCPU's inbox.
    pub inbox: Berth,
}

impl Journey {
    /// The second pCPU has so many slots left.
    pub fn new(slots: u32) -> Self {
        let journey = Self {
            state: loom::cell::UnsafeCell::new(0),
            location: VcpuLocation::new(),
            mailboxes: Mailboxes::new(),
            sgis: Sgis::default(),
            inbox: Berth::new(slots),
        };
        // Loom's words are made at their first use, which must not be by two at a time.
        journey.location.set(0, 0);
        journey.mailboxes.take(0);
        journey
    }

    /// Somebody leaves something for the vCPU.
    pub fn leave(&self, what: u32) {
        self.mailboxes.post(0, what, &self.location, &self.sgis);
    }

    /// The first pCPU gives the vCPU away; `false`: there is no room.
    pub fn give_away(&self) -> bool {
        self.state.with_mut(|_| ());
        let sent = self.inbox.lay(|| self.location.set(0, 1));
        if sent {
            self.sgis.kick(1);
        }
        sent
    }

    /// A third pCPU sends another vCPU there; `false`: there is no room, or not now.
    pub fn send_another(&self) -> bool {
        let sent = self.inbox.lay(|| ());
        if sent {
            self.sgis.kick(1);
        }
        sent
    }

    /// The first pCPU takes its SGI, if it is pending: what is for a vCPU that it has not it leaves alone.
    pub fn first(&self, has_it: bool) -> u32 {
        if self.sgis.take(0) && has_it {
            self.look()
        } else {
            0
        }
    }

    /// The second one takes its SGI, if it is pending, and with it the vCPU, if it comes; gives what was left for it.
    pub fn second(&self, has: &mut u32) -> u32 {
        if !self.sgis.take(1) {
            return 0;
        }
        match self.inbox.take() {
            None => self.sgis.kick(1),
            Some(comes) => *has += u32::from(comes),
        }
        if *has == 0 {
            return 0;
        }
        fence(Ordering::SeqCst);
        self.look()
    }

    fn look(&self) -> u32 {
        self.state.with_mut(|_| ());
        self.mailboxes.take(0)
    }
}

/// Where a vCPU is laid for a pCPU, by one of several others; nobody waits for it.
#[derive(Debug)]
pub struct Berth {
    taken: AtomicBool,
    /// Both are used by who has it. The slots are also written by the pCPU itself at other times, and only to more.
    full: loom::cell::UnsafeCell<u32>,
    has: AtomicU32,
    slots: AtomicU32,
}

impl Berth {
    /// Of a pCPU with so many slots left.
    pub fn new(slots: u32) -> Self {
        Self {
            taken: AtomicBool::new(false),
            full: loom::cell::UnsafeCell::new(0),
            has: AtomicU32::new(0),
            slots: AtomicU32::new(slots),
        }
    }

    fn try_use<R>(&self, act: impl FnOnce() -> R) -> Option<R> {
        if self.taken.swap(true, Ordering::Acquire) {
            return None;
        }
        self.full.with_mut(|_| ());
        let result = act();
        // At EL2 a store. Loom has one come before a swap that has seen what was there before it.
        self.taken.swap(false, Ordering::Release);
        Some(result)
    }

    /// Another pCPU lays a vCPU here, if there is room; `before` is done before that shows.
    pub fn lay(&self, before: impl FnOnce()) -> bool {
        let laid = self.try_use(|| {
            let room =
                self.has.load(Ordering::Relaxed) == 0 && self.slots.load(Ordering::Relaxed) > 0;
            if room {
                before();
                self.has.store(1, Ordering::Relaxed);
            }
            room
        });
        laid == Some(true)
    }

    /// The pCPU takes who is here: whether there was one. `None`: somebody uses it at this moment.
    pub fn take(&self) -> Option<bool> {
        self.try_use(|| {
            let comes = self.has.load(Ordering::Relaxed) == 1;
            if comes {
                self.has.store(0, Ordering::Relaxed);
                let slots = self.slots.load(Ordering::Relaxed);
                assert!(slots > 0, "a vCPU without a slot");
                self.slots.store(slots - 1, Ordering::Relaxed);
            }
            comes
        })
    }
}
