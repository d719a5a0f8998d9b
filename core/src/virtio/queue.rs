//! A shadow virtqueue: chains go from the guest's ring to the backend's with the bytes that the backend may read, and back with those that it
//! has written (`docs/adr/0024-shadow-virtqueues.md`). Each call does as much as its [`Budget`] allows, and goes on there in the next.

use super::backend_ring::{self, BackendRing, Chain};
use super::device::Store;
use super::guest_ring::{self, GuestRing, Walk};
use super::memory::{Access, At, Memory, Space};

/// How much a call may do, in bytes that could be copied. Whatever it does is counted by a bound for what it takes, not by what the CPU
/// has executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget(u32);

/// What a descriptor takes, or the beginning or the end of a chain.
pub const DESCRIPTOR: u32 = instructions(200);

/// What so many instructions of EL2 are in a budget. 128 bytes take 10 (`Memory::copy`), and two more for their caches.
pub const fn instructions(number: u32) -> u32 {
    number.wrapping_mul(32) / 3
}

impl Budget {
    /// Nothing may be done any more.
    pub const SPENT: Self = Self(0);

    /// So many descriptors, and copies of so many bytes.
    pub const fn of(descriptors: u32, bytes: u32) -> Self {
        Self(descriptors.wrapping_mul(DESCRIPTOR).wrapping_add(bytes))
    }

    /// Whether nothing more may be done.
    pub const fn is_spent(self) -> bool {
        self.0 == 0
    }

    /// How many bytes may be copied.
    pub const fn left(self) -> u32 {
        self.0
    }

    /// Something has taken as much as the copy of so many bytes.
    pub const fn spend(&mut self, bytes: u32) {
        self.0 = self.0.saturating_sub(bytes);
    }

    /// A descriptor was looked at.
    pub const fn look(&mut self) {
        self.spend(DESCRIPTOR);
    }
}

/// How many of the largest chains a backend can write before the device wants to know of more buffers.
pub const SUPPLY: u32 = 4;

/// What a call has left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is nothing more.
    Idle,
    /// The budget is spent.
    More,
    /// There is no free slot until the backend gives one back.
    Full,
}

/// Who has broken a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The guest's driver: the device needs a reset.
    Guest,
    /// The backend: the device stops until a new session.
    Backend,
}

impl From<guest_ring::Broken> for Broken {
    fn from(_: guest_ring::Broken) -> Self {
        Self::Guest
    }
}

impl From<backend_ring::Broken> for Broken {
    fn from(_: backend_ring::Broken) -> Self {
        Self::Backend
    }
}

/// What the plan says about a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Most readable bytes of a chain. The queue has slots for these and for [`Self::writable`] together.
    pub readable: u32,
    /// Most writable bytes of a chain.
    pub writable: u32,
    /// `len` of used entries is what the backend has written. Else all writable bytes are copied.
    pub exact: bool,
    /// Chains that a backend had when it ended are posted to the next one. Else they are given back with length 0.
    pub replay: bool,
}

/// A chain on its way to the backend.
#[derive(Clone, Copy, Debug)]
struct Forward {
    head: u16,
    walk: Walk,
    chain: Chain,
    readable: u32,
}

/// A chain on its way back.
#[derive(Clone, Copy, Debug)]
struct Back {
    head: u16,
    guest: u16,
    len: u32,
    /// Along the guest's buffers once more, where it is not known for what place the bytes of a slot are.
    walk: Option<Walk>,
    /// Bytes that are still to be copied.
    left: u32,
    slot: u16,
    /// Bytes of this slot that have been copied.
    offset: u32,
}

/// The queue, between two rings.
#[derive(Debug)]
pub struct Queue<'a> {
    guest: GuestRing,
    backend: BackendRing<'a>,
    policy: Policy,
    forward: Option<Forward>,
    back: Option<Back>,
    /// The batch that goes back to the guest ends with this entry of the backend's used ring.
    batch: u16,
    /// Heads of the guest's chains that are to be posted anew: those from `again_next` to `again_end`.
    again: &'a mut [u16],
    again_next: u16,
    again_end: u16,
    /// While a session ends: how many heads were put there.
    kept: u16,
}

impl<'a> Queue<'a> {
    /// The queue between two rings that are empty. `again` has an element for each slot.
    pub fn new(
        guest: GuestRing,
        backend: BackendRing<'a>,
        policy: Policy,
        again: &'a mut [u16],
    ) -> Self {
        let batch = backend.used_next();
        Self {
            guest,
            backend,
            policy,
            forward: None,
            back: None,
            batch,
            again,
            again_next: 0,
            again_end: 0,
            kept: 0,
        }
    }

    /// Ends the queue: nothing of the guest's ring and of the window is used any more.
    pub fn into_store(self) -> Store<'a> {
        Store {
            slots: self.backend.into_slots(),
            again: self.again,
        }
    }

    /// The backend's side.
    pub const fn backend(&self) -> &BackendRing<'a> {
        &self.backend
    }

    /// Takes chains from the guest's ring to the backend's. [`Self::publish_to_backend`] follows.
    #[inline(never)]
    pub fn forward(
        &mut self,
        memory: &impl Memory,
        space: &impl Space,
        budget: &mut Budget,
    ) -> Result<Step, Broken> {
        while !budget.is_spent() {
            if self.forward.is_none() {
                match self.next_chain(memory, space)? {
                    Step::More => budget.look(),
                    step => return Ok(step),
                }
            }
            let (guest, backend) = (&self.guest, &mut self.backend);
            let Some(forward) = &mut self.forward else {
                continue;
            };
            let step = forward.copy_in((guest, backend, self.policy), memory, space, budget)?;
            if step != Step::Idle {
                return Ok(step);
            }
            backend.post(forward.chain, forward.head, memory);
            self.forward = None;
        }
        Ok(Step::More)
    }

    /// Begins with the next chain of the guest's, if there is one and a slot for it.
    #[inline(always)]
    fn next_chain(&mut self, memory: &impl Memory, space: &impl Space) -> Result<Step, Broken> {
        let again = self.again_next != self.again_end;
        if !again {
            if !self.guest.has_next(memory, space)? {
                return Ok(Step::Idle);
            }
            // Until there are no more.
            self.guest.hush(memory, space)?;
        }
        // Before the head is taken, so that chains on their way and those that the backend has are never more than slots.
        let Some(chain) = self.backend.begin() else {
            return Ok(Step::Full);
        };
        let head = match self.next_again() {
            Some(head) => Ok(head),
            None => self.guest.take(memory, space),
        };
        let Ok(head) = head else {
            self.backend.drop(chain);
            return Err(Broken::Guest);
        };
        self.forward = Some(Forward {
            head,
            walk: Walk::new(&self.guest, head),
            chain,
            readable: 0,
        });
        Ok(Step::More)
    }

    fn next_again(&mut self) -> Option<u16> {
        if self.again_next == self.again_end {
            return None;
        }
        let head = self.again.get(usize::from(self.again_next)).copied();
        self.again_next = self.again_next.wrapping_add(1);
        head
    }

    /// Shows the backend what was posted. `true`: it wants to be told.
    pub fn publish_to_backend(&mut self, memory: &impl Memory) -> bool {
        self.backend.publish(memory)
    }

    /// Takes chains from the backend's used ring to the guest's. [`Self::publish_to_guest`] follows.
    pub fn back(
        &mut self,
        memory: &impl Memory,
        space: &impl Space,
        budget: &mut Budget,
    ) -> Result<Step, Broken> {
        while !budget.is_spent() {
            if self.back.is_none() {
                match self.next_used(memory)? {
                    Step::More => budget.look(),
                    step => return Ok(step),
                }
            }
            let Some(back) = &mut self.back else {
                continue;
            };
            let step = back.copy_out((&self.guest, &self.backend), memory, space, budget)?;
            if step != Step::Idle {
                return Ok(step);
            }
            let (head, guest, len) = (back.head, back.guest, back.len);
            self.back = None;
            self.backend.done(head);
            self.guest.give(guest, len, memory, space)?;
        }
        Ok(Step::More)
    }

    /// Begins with the next chain that the backend has given back, if there is one.
    #[inline(always)]
    fn next_used(&mut self, memory: &impl Memory) -> Result<Step, Broken> {
        if self.batch == self.backend.used_next() {
            self.batch = self.backend.used_index(memory)?;
        }
        if self.batch == self.backend.used_next() {
            return Ok(Step::Idle);
        }
        let used = self.backend.used(memory)?;
        let exact = self.policy.exact;
        let left = if exact { used.len } else { used.writable };
        self.back = Some(Back {
            head: used.head,
            guest: used.guest,
            len: used.len,
            walk: (left != 0 && used.scattered).then(|| Walk::new(&self.guest, used.guest)),
            left,
            slot: used.first_writable,
            offset: 0,
        });
        Ok(Step::More)
    }

    /// Shows the guest what was given back, if a batch of the backend's ends there. `true`: it wants an interrupt.
    pub fn publish_to_guest(
        &mut self,
        memory: &impl Memory,
        space: &impl Space,
    ) -> Result<bool, Broken> {
        if self.back.is_some() || self.batch != self.backend.used_next() {
            return Ok(false);
        }
        Ok(self.guest.publish(memory, space)?)
    }

    /// Nothing is to be done: asks both sides to tell. `true`: one of them has done something meanwhile.
    pub fn sleep(&mut self, memory: &impl Memory, space: &impl Space) -> Result<bool, Broken> {
        // While no slot is free, further chains change nothing.
        let full = self.backend.is_full() || self.forward.is_some();
        let more = if full {
            false
        } else if self.is_supplied() {
            self.guest.hush(memory, space)?;
            false
        } else {
            self.guest.ask(memory, space)?
        };
        Ok(self.backend.ask(memory) || more)
    }

    /// Whether the backend has buffers to write to for some of the largest chains, of a queue that has nothing to read. Further ones are taken
    /// when it has given one back: the driver need not notify the device of each that it puts there. What counts is bytes, because a frame may
    /// take several buffers.
    fn is_supplied(&self) -> bool {
        let Policy {
            readable, writable, ..
        } = self.policy;
        readable == 0 && self.backend.writable() >= writable.saturating_mul(SUPPLY)
    }

    /// The device looks by itself: the driver need not notify it.
    pub fn hush(&mut self, memory: &impl Memory, space: &impl Space) -> Result<(), Broken> {
        Ok(self.guest.hush(memory, space)?)
    }

    /// Ends the session with the backend. What it has not given back waits to be posted anew in the next one, in the order in which
    /// it was posted, or goes back to the guest with length 0. Before, [`Self::back`] has taken what it has given back, to
    /// the last, or to the first that breaks a rule: a batch ends there, because that is no fault of the guest's.
    /// [`Step::More`]: to be called again.
    pub fn end_session(
        &mut self,
        memory: &impl Memory,
        space: &impl Space,
        budget: &mut Budget,
    ) -> Result<Step, Broken> {
        debug_assert!(self.back.is_none(), "a chain on its way would be lost");
        while let Some(head) = self.backend.take_back() {
            if self.policy.replay {
                self.keep(head);
            } else {
                self.guest.give(head, 0, memory, space)?;
            }
            budget.look();
            if budget.is_spent() {
                return Ok(Step::More);
            }
        }
        // This one the backend has never seen, whatever the policy.
        if let Some(forward) = self.forward.take() {
            self.keep(forward.head);
        }
        // Those that still wait lie behind at least as many as were taken from there and are back now.
        let waiting = usize::from(self.again_next)..usize::from(self.again_end);
        let (mut kept, count) = (usize::from(self.kept), waiting.len() as u16);
        for from in waiting {
            let head = self.again.get(from).copied().unwrap_or(0);
            if let Some(place) = self.again.get_mut(kept) {
                *place = head;
            }
            kept = kept.wrapping_add(1);
        }
        (self.again_next, self.again_end) = (0, self.kept.wrapping_add(count));
        self.kept = 0;
        self.backend.forget();
        self.batch = self.backend.used_next();
        Ok(Step::Idle)
    }

    /// Puts a head among those that are to be posted anew.
    fn keep(&mut self, head: u16) {
        if let Some(place) = self.again.get_mut(usize::from(self.kept)) {
            *place = head;
            self.kept = self.kept.wrapping_add(1);
        }
    }

    /// Makes the backend's ring anew, empty, for a backend that has let go of everything.
    pub fn begin_session(&self, memory: &impl Memory) {
        self.backend.make(memory);
    }
}

impl Forward {
    /// Goes on with a chain. [`Step::Idle`]: it is complete.
    fn copy_in(
        &mut self,
        (guest, backend, policy): (&GuestRing, &mut BackendRing, Policy),
        memory: &impl Memory,
        space: &impl Space,
        budget: &mut Budget,
    ) -> Result<Step, Broken> {
        loop {
            let (ipa, len, access) = self.walk.buffer();
            if len == 0 && self.walk.is_at_last() {
                return Ok(Step::Idle);
            }
            if budget.is_spent() {
                return Ok(Step::More);
            }
            if len == 0 {
                self.walk.next(guest, memory, space)?;
                budget.look();
                self.count(policy)?;
                continue;
            }
            // Behind each slot that is full, or each region that ends, it goes on.
            let (at, behind) = space.reach(ipa, access).ok_or(Broken::Guest)?;
            let here = len.min(u32::try_from(behind).unwrap_or(u32::MAX));
            let writable = access == Access::Write;
            let Some(free) = backend.space_left(&mut self.chain, writable, memory) else {
                return Ok(Step::Full);
            };
            let mut bytes = here.min(free);
            if writable {
                backend.let_write(&mut self.chain, at, bytes);
            } else {
                bytes = bytes.min(budget.left());
                memory.copy(at, backend.end(&self.chain), bytes.into());
                BackendRing::fill(&mut self.chain, bytes);
                budget.spend(bytes);
            }
            self.walk.copied(bytes);
            if bytes != len {
                // Another slot, or another region, which takes as long as a descriptor does.
                budget.look();
            }
        }
    }

    /// Counts the buffer that was found.
    fn count(&mut self, policy: Policy) -> Result<(), Broken> {
        let (_, len, access) = self.walk.buffer();
        let (before, most) = match access {
            Access::Write => (self.chain.writable(), policy.writable),
            Access::Read => (self.readable, policy.readable),
        };
        // The driver was told what the largest request is, by the features and the config.
        let all = before.checked_add(len).filter(|all| *all <= most);
        let all = all.ok_or(Broken::Guest)?;
        if access == Access::Read {
            self.readable = all;
        }
        Ok(())
    }
}

impl Back {
    /// Goes on with a chain. [`Step::Idle`]: all its bytes are the guest's.
    #[inline(always)]
    fn copy_out(
        &mut self,
        (guest, backend): (&GuestRing, &BackendRing),
        memory: &impl Memory,
        space: &impl Space,
        budget: &mut Budget,
    ) -> Result<Step, Broken> {
        if self.walk.is_some() {
            return self.scatter((guest, backend), memory, space, budget);
        }
        while self.left != 0 {
            if budget.is_spent() {
                return Ok(Step::More);
            }
            let (from, most) = self.written(backend);
            let bytes = most.min(budget.left());
            let to = backend.place(self.slot).plus(self.offset.into());
            memory.copy(from, to, bytes.into());
            self.copied(bytes, budget);
        }
        Ok(Step::Idle)
    }

    /// The same along the guest's buffers.
    #[inline(never)]
    fn scatter(
        &mut self,
        (guest, backend): (&GuestRing, &BackendRing),
        memory: &impl Memory,
        space: &impl Space,
        budget: &mut Budget,
    ) -> Result<Step, Broken> {
        while self.left != 0 {
            if budget.is_spent() {
                return Ok(Step::More);
            }
            let walk = self.walk.as_mut().ok_or(Broken::Guest)?;
            let (ipa, len) = walk.rest(Access::Write);
            if len == 0 {
                budget.look();
                // A chain with fewer bytes than there were when it came: the driver has changed it.
                if !walk.go(guest, memory, space)? {
                    return Err(Broken::Guest);
                }
                continue;
            }
            let (to, behind) = space.reach(ipa, Access::Write).ok_or(Broken::Guest)?;
            let (from, most) = self.written(backend);
            let bytes = len
                .min(most)
                .min(u32::try_from(behind).unwrap_or(u32::MAX))
                .min(budget.left());
            memory.copy(from, to, bytes.into());
            self.copied(bytes, budget);
            if let Some(walk) = &mut self.walk {
                walk.copied(bytes);
            }
        }
        Ok(Step::Idle)
    }

    /// The bytes that come next: where they are in a slot, and how many behind one another are the guest's.
    #[inline(always)]
    fn written(&mut self, backend: &BackendRing) -> (At, u32) {
        let slot_bytes = backend.layout().slot_bytes;
        if self.offset == slot_bytes {
            self.slot = backend.behind(self.slot);
            self.offset = 0;
        }
        let from = backend.bytes(self.slot).plus(self.offset.into());
        (from, self.left.min(slot_bytes.wrapping_sub(self.offset)))
    }

    /// So many were copied.
    #[inline(always)]
    fn copied(&mut self, bytes: u32, budget: &mut Budget) {
        self.offset = self.offset.wrapping_add(bytes);
        self.left = self.left.wrapping_sub(bytes);
        budget.spend(bytes);
    }
}
