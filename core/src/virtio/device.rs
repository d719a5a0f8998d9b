//! A device as the service thread has it: its queues and its session, in slices. Everything that a slice brings about for others
//! goes back as an [`Outcome`].
//!
//! | state | queues | what ends it |
//! | --- | --- | --- |
//! | nobody drives it | none | the driver starts it |
//! | it waits for its backend | of the guest; the backend's are empty | the backend is ready for the session |
//! | it is live | both sides | reset, broken rings, the backend's end |
//! | a session ends | what the backend had is taken back, in slices | that is done |

use bulkhead_abi::device::MAX_QUEUES;

use super::backend_ring::{BackendRing, Layout, Slot};
use super::guest_ring::GuestRing;
use super::memory::{At, Memory, Space};
use super::queue::{Broken, Budget, Policy, Queue, Step};
use super::requests::{Asked, Release, Requests};
use super::session::{News, QueueRow, Session};
use super::transport::Transport;

/// Memory of EL2's own that a queue needs: an element for each slot.
#[derive(Debug)]
pub struct Store<'a> {
    /// What is known of the slots.
    pub slots: &'a mut [Slot],
    /// Chains that are to be posted anew.
    pub again: &'a mut [u16],
}

/// What the plan says about a queue.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    /// Where it lies in the window.
    pub layout: Layout,
    /// What holds for its chains.
    pub policy: Policy,
}

/// What the plan says about a device.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The service thread looks at its queues by itself, and the driver at what it gets back: neither tells the other.
    pub polled: bool,
    /// What a backend had when it ended cannot be given to another one: the guest has to reset the device.
    pub resets: bool,
}

/// What a slice has brought about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The guest is to be interrupted for used buffers.
    pub used: bool,
    /// The backend is to be told.
    pub backend: bool,
    /// The device cannot go on: [`Transport::fail`] is to be called, and the guest told.
    pub failed: bool,
    /// There is more to do at once.
    pub more: bool,
}

impl Outcome {
    /// Nothing.
    pub const NOTHING: Self = Self {
        used: false,
        backend: false,
        failed: false,
        more: false,
    };

    /// All that one or the other asks for.
    pub const fn and(self, other: Self) -> Self {
        Self {
            used: self.used || other.used,
            backend: self.backend || other.backend,
            failed: self.failed || other.failed,
            more: self.more || other.more,
        }
    }
}

/// A queue: in use, or with its memory spare. Neither where the device has no such queue.
#[derive(Debug, Default)]
struct Place<'a> {
    spare: Option<Store<'a>>,
    queue: Option<Queue<'a>>,
}

/// A device.
#[derive(Debug)]
pub struct Device<'a> {
    kind: Kind,
    window: At,
    planned: [Option<Planned>; MAX_QUEUES],
    places: [Place<'a>; MAX_QUEUES],
    session: Session,
    features: u64,
    /// The driver drives it, and it has not failed since.
    driven: bool,
    /// The session is to be ended, what the backend had first.
    ending: bool,
    /// Number of its queues.
    count: usize,
    /// The queue that is served first in the next slice.
    turn: usize,
}

impl<'a> Device<'a> {
    /// A device that nobody drives.
    pub fn new(kind: Kind, window: At, queues: impl Iterator<Item = (Planned, Store<'a>)>) -> Self {
        let mut device = Self {
            kind,
            window,
            planned: [None; MAX_QUEUES],
            places: Default::default(),
            session: Session::new(),
            features: 0,
            driven: false,
            ending: false,
            count: 0,
            turn: 0,
        };
        for (planned, store) in queues {
            device.add_queue(planned, store);
        }
        device
    }

    /// Adds the next queue, before anybody drives the device.
    pub fn add_queue(&mut self, planned: Planned, store: Store<'a>) {
        let places = self.planned.iter_mut().zip(&mut self.places);
        let mut free = places.filter(|(planned, _)| planned.is_none());
        if let Some((known, place)) = free.next() {
            *known = Some(planned);
            place.spare = Some(store);
            self.count = self.count.wrapping_add(1);
        }
    }

    /// Writes the words of the session to the device page, whose memory was made anew: when the board starts, and for a new life of the
    /// backend's VM.
    pub fn show(&self, memory: &impl Memory) {
        self.session.show(memory, self.window);
    }

    /// Whether the backend serves it.
    pub const fn is_live(&self) -> bool {
        self.session.is_live()
    }

    /// Whether the driver drives it, and has not broken a rule since.
    pub const fn is_driven(&self) -> bool {
        self.driven
    }

    /// The backend's VM has ended, or will: the session is to be ended. Its memory must stay until [`Self::has_let_go`].
    pub fn end_session(&mut self) {
        self.ending |= self.session.is_live();
    }

    /// Whether nothing of the window is used any more but the words of the session.
    pub const fn has_let_go(&self) -> bool {
        !self.session.is_live()
    }

    /// Takes over what the driver has set up, because it has started the device or enabled a queue. No vCPU uses the registers
    /// meanwhile. The driver of a polled device sees from here on that it need not notify.
    pub fn start(
        &mut self,
        transport: &Transport,
        requests: &Requests,
        memory: &impl Memory,
        space: &impl Space,
    ) -> Outcome {
        requests.begin();
        if !transport.is_driven() {
            return Outcome::default();
        }
        self.driven = true;
        self.features = transport.features();
        let features = transport.ring_features(self.kind.polled);
        let mut added = false;
        for index in 0..MAX_QUEUES {
            let (Some(setup), Some(Some(planned)), Some(place)) = (
                transport.enabled(index),
                self.planned.get(index),
                self.places.get_mut(index),
            ) else {
                continue;
            };
            if place.spare.is_none() {
                continue;
            }
            let Some(guest) = GuestRing::new(setup, features, space) else {
                return self.fail();
            };
            if let Some(store) = place.spare.take() {
                let backend = BackendRing::new(planned.layout, store.slots);
                let queue = Queue::new(guest, backend, planned.policy, store.again);
                let queue = place.queue.insert(queue);
                added = true;
                if self.kind.polled && queue.hush(memory, space).is_err() {
                    return self.fail();
                }
            }
        }
        // A queue that comes later, or comes back, is there from the next session on. Until then the backend may use the slots of the one
        // that was there before.
        self.ending |= added && self.session.is_live();
        Outcome {
            more: true,
            ..Outcome::default()
        }
    }

    /// Lets go of a queue or of all. Nothing of the guest's memory behind them is used afterwards.
    #[inline(never)]
    fn let_go(&mut self, what: Release, memory: &impl Memory) {
        for (index, place) in self.places.iter_mut().enumerate() {
            if what != Release::All && what != Release::Queue(index as u16) {
                continue;
            }
            if let Some(queue) = place.queue.take() {
                place.spare = Some(queue.into_store());
            }
        }
        if what == Release::All {
            self.driven = false;
            self.ending = false;
            if self.session.is_live() {
                self.session.end(memory, self.window);
            }
        }
    }

    fn fail(&mut self) -> Outcome {
        // The queues stay until the driver resets the device, and are not served.
        self.driven = false;
        Outcome {
            failed: true,
            ..Outcome::default()
        }
    }

    /// Does as much as the budget allows. The caller has taken the notifications before.
    pub fn slice(
        &mut self,
        asked: Asked<'_>,
        memory: &impl Memory,
        space: &impl Space,
        budget: &mut Budget,
    ) -> Outcome {
        if let Some(what) = asked.release() {
            self.let_go(what, memory);
            asked.released();
            // The backend is to see that the session has ended.
            return Outcome {
                backend: true,
                more: true,
                ..Outcome::default()
            };
        }
        let mut outcome = Outcome::default();
        let served = if self.ending {
            self.end(memory, space, budget, &mut outcome)
        } else if !self.session.is_live() {
            self.wait(memory, &mut outcome);
            Ok(())
        } else if self.session.look(memory, self.window) == News::WantsRestart {
            self.ending = true;
            outcome.more = true;
            Ok(())
        } else if self.driven {
            self.serve(memory, space, budget, &mut outcome)
        } else {
            Ok(())
        };
        match served {
            Ok(()) => {}
            Err(Broken::Guest) => outcome = outcome.and(self.break_off(memory)),
            Err(Broken::Backend) => {
                self.ending = true;
                outcome.more = true;
            }
        }
        outcome
    }

    /// The guest has broken a rule, or what it waits for cannot be repeated.
    fn break_off(&mut self, memory: &impl Memory) -> Outcome {
        self.ending = false;
        if self.session.is_live() {
            self.session.end(memory, self.window);
        }
        let mut outcome = self.fail();
        outcome.backend = true;
        outcome
    }

    /// Begins the session when the backend is ready for it and the guest drives the device.
    #[inline(never)]
    fn wait(&mut self, memory: &impl Memory, outcome: &mut Outcome) {
        if !self.driven || self.session.look(memory, self.window) != News::Ready {
            return;
        }
        for queue in self.places.iter().flat_map(|place| &place.queue) {
            queue.begin_session(memory);
        }
        let all = self.planned.iter().zip(&self.places);
        let rows = all.map_while(|(planned, place)| {
            let layout = planned.as_ref()?.layout;
            Some(QueueRow {
                table: layout.ring.table as u32,
                size: layout.size,
                enabled: place.queue.is_some(),
                slot_bytes: layout.slot_bytes,
                slots: layout.slots as u32,
            })
        });
        self.session.begin(self.features, rows, memory, self.window);
        (outcome.backend, outcome.more) = (true, true);
    }

    /// Takes what the backend has given back, and then what it has not, in slices.
    #[inline(never)]
    fn end(
        &mut self,
        memory: &impl Memory,
        space: &impl Space,
        budget: &mut Budget,
        outcome: &mut Outcome,
    ) -> Result<(), Broken> {
        outcome.more = true;
        for queue in self.places.iter_mut().flat_map(|place| &mut place.queue) {
            // A backend that breaks a rule in its last words is not asked further.
            if queue.back(memory, space, budget) == Err(Broken::Guest) {
                return Err(Broken::Guest);
            }
            if budget.is_spent() {
                return Ok(());
            }
            if self.kind.resets && queue.backend().outstanding() != 0 {
                return Err(Broken::Guest);
            }
            if queue.end_session(memory, space, budget)? == Step::More {
                return Ok(());
            }
            outcome.used |= queue.publish_to_guest(memory, space)?;
        }
        self.ending = false;
        self.session.end(memory, self.window);
        outcome.backend = true;
        Ok(())
    }

    /// Moves chains both ways, of one queue after the other.
    fn serve(
        &mut self,
        memory: &impl Memory,
        space: &impl Space,
        budget: &mut Budget,
        outcome: &mut Outcome,
    ) -> Result<(), Broken> {
        let mut next = self.turn;
        for _ in 0..self.count {
            let index = if next < self.count { next } else { 0 };
            next = index.wrapping_add(1);
            let place = self.places.get_mut(index);
            let Some(queue) = place.and_then(|place| place.queue.as_mut()) else {
                continue;
            };
            queue.back(memory, space, budget)?;
            outcome.used |= queue.publish_to_guest(memory, space)?;
            let forward = queue.forward(memory, space, budget);
            // What was posted before a broken chain is good.
            outcome.backend |= queue.publish_to_backend(memory);
            forward?;
            if budget.is_spent() {
                // The next slice goes on behind this queue, so that none of them keeps the others away.
                self.turn = next;
                outcome.more = true;
                return Ok(());
            }
        }
        outcome.more |= self.sleep(memory, space)?;
        Ok(())
    }

    /// Nothing is left to do: asks both sides to tell. `true`: one of them has done something meanwhile.
    fn sleep(&mut self, memory: &impl Memory, space: &impl Space) -> Result<bool, Broken> {
        let mut more = false;
        for queue in self.places.iter_mut().flat_map(|place| &mut place.queue) {
            more |= queue.sleep(memory, space)?;
        }
        Ok(more)
    }
}
