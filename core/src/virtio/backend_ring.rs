//! A virtqueue of a window, of which EL2 is the driver and the backend the device. The backend is another VM: it is believed nothing.
//! What EL2 knows of the queue is in its own memory ([`Slot`]); it reads no descriptor back.

use core::sync::atomic::{Ordering, fence};

use bulkhead_abi::device::ring::{
    self, AVAILABLE_ENTRY, DESCRIPTOR, ENTRIES, INDEX, NEXT, Ring, USED_ENTRY, WRITE,
};

use super::memory::{At, Memory};

/// The backend has broken a rule: the device stops until it begins anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// No slot, and no chain.
const NONE: u16 = u16::MAX;
/// In the first slot with bytes that the backend writes: those of one of the slots are for several places.
const SCATTERED: At = At::new(0);

/// Where a queue lies in its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Where EL2 reaches the window.
    pub window: At,
    /// Offsets of the parts of the queue.
    pub ring: Ring,
    /// Number of descriptors, and of slots.
    pub size: u16,
    /// Offset of slot 0.
    pub slots: u64,
    /// Bytes of a slot.
    pub slot_bytes: u32,
}

impl Layout {
    fn at(&self, offset: u64) -> At {
        self.window.plus(offset)
    }

    /// Offset of a slot in the window.
    #[inline(always)]
    fn slot(&self, number: u16) -> u64 {
        let bytes = u64::from(self.slot_bytes);
        self.slots
            .wrapping_add(bytes.wrapping_mul(u64::from(number)))
    }
}

/// What EL2 knows of a slot and its descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Where the bytes that the backend writes to the slot are for, if those of each slot of the chain are for one place.
    to: At,
    /// The next slot of the chain, or the next free one.
    next: u16,
    /// What follows holds for the first slot of a chain. Head of the guest's chain; [`NONE`]: the backend does not have it.
    guest: u16,
    /// The last slot.
    last: u16,
    /// First slot whose bytes the backend writes.
    first_writable: u16,
    /// Number of bytes that it may write.
    writable: u32,
    /// Neighbours in the order in which chains were posted.
    older: u16,
    newer: u16,
}

impl Slot {
    /// A slot of which nothing is known yet.
    pub const NEW: Self = Self {
        to: SCATTERED,
        next: NONE,
        guest: NONE,
        last: NONE,
        first_writable: NONE,
        writable: 0,
        older: NONE,
        newer: NONE,
    };
}

/// A chain while it is put together.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    head: u16,
    last: u16,
    /// Bytes in the last slot.
    filled: u32,
    first_writable: u16,
    writable: u32,
    scattered: bool,
}

impl Chain {
    /// Number of bytes that the backend may write.
    pub const fn writable(&self) -> u32 {
        self.writable
    }
}

/// A chain that the backend has given back.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    /// Its first slot.
    pub head: u16,
    /// Head of the guest's chain.
    pub guest: u16,
    /// Number of bytes that the backend has written, as it says. Not more than it could.
    pub len: u32,
    /// Number of bytes that it could write.
    pub writable: u32,
    /// First slot with such bytes.
    pub first_writable: u16,
    /// Bytes of one of its slots are for several places: [`BackendRing::place`] does not know them.
    pub scattered: bool,
}

/// The queue.
#[derive(Debug)]
pub struct BackendRing<'a> {
    layout: Layout,
    slots: &'a mut [Slot],
    /// Slots that were used and are free again, as a list.
    free: u16,
    /// Slots from this one on were not used in this session: nothing in [`Slot`] holds for them.
    fresh: u16,
    /// Entry of the available ring that comes next, and the index that the backend sees there.
    next: u16,
    published: u16,
    /// Entry of the used ring that comes next.
    used_next: u16,
    /// Number of chains that the backend has, and of bytes that it may write there.
    outstanding: u16,
    writable: u32,
    oldest: u16,
    newest: u16,
}

impl<'a> BackendRing<'a> {
    /// The queue of a layout; `slots` has an element for each slot.
    pub const fn new(layout: Layout, slots: &'a mut [Slot]) -> Self {
        Self {
            layout,
            slots,
            free: NONE,
            fresh: 0,
            next: 0,
            published: 0,
            used_next: 0,
            outstanding: 0,
            writable: 0,
            oldest: NONE,
            newest: NONE,
        }
    }

    /// Gives back what the slots were described in.
    pub const fn into_slots(self) -> &'a mut [Slot] {
        self.slots
    }

    /// Where it lies.
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Number of chains that the backend has.
    pub const fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// Number of bytes that it may write in these.
    pub const fn writable(&self) -> u32 {
        self.writable
    }

    /// Whether no slot is free.
    pub const fn is_full(&self) -> bool {
        self.free == NONE && self.fresh == self.layout.size
    }

    /// Makes all slots free, and the queue empty. What the backend still has is forgotten.
    pub const fn forget(&mut self) {
        (self.free, self.fresh) = (NONE, 0);
        (self.next, self.published, self.used_next) = (0, 0, 0);
        (self.outstanding, self.writable) = (0, 0);
        (self.oldest, self.newest) = (NONE, NONE);
    }

    /// Makes the rings in the window empty, for a backend that has let go of everything.
    pub fn make(&self, memory: &impl Memory) {
        for ring in [self.layout.ring.available, self.layout.ring.used] {
            memory.store32(self.layout.at(ring), 0);
        }
        let (size, ring) = (self.layout.size, &self.layout.ring);
        let events = [
            ring.available.wrapping_add(ring::used_event(size)),
            ring.used.wrapping_add(ring::avail_event(size)),
        ];
        for event in events {
            memory.store16(self.layout.at(event), 0);
        }
    }

    #[inline(always)]
    fn of(&self, number: u16) -> Option<&Slot> {
        self.slots.get(usize::from(number))
    }

    #[inline(always)]
    fn of_mut(&mut self, number: u16) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(number))
    }

    /// Takes a free slot.
    #[inline(always)]
    fn take(&mut self) -> Option<u16> {
        let number = self.free;
        if let Some(slot) = self.of_mut(number) {
            let next = core::mem::replace(&mut slot.next, NONE);
            self.free = next;
            return Some(number);
        }
        let fresh = self.fresh;
        if fresh >= self.layout.size {
            return None;
        }
        *self.of_mut(fresh)? = Slot::NEW;
        self.fresh = fresh.wrapping_add(1);
        Some(fresh)
    }

    /// Begins a chain. `None`: there is no free slot.
    pub fn begin(&mut self) -> Option<Chain> {
        let head = self.take()?;
        Some(Chain {
            head,
            last: head,
            filled: 0,
            first_writable: NONE,
            writable: 0,
            scattered: false,
        })
    }

    /// Room at the end of the chain for bytes that the backend reads, or behind all these for such that it writes: how many. `None`: there is no
    /// free slot.
    #[inline(always)]
    pub fn space_left(
        &mut self,
        chain: &mut Chain,
        writable: bool,
        memory: &impl Memory,
    ) -> Option<u32> {
        let is_first = writable && chain.first_writable == NONE;
        // A chain that has nothing readable begins with a slot that is written.
        let is_needed = is_first && chain.filled != 0;
        if is_needed || chain.filled == self.layout.slot_bytes {
            self.extend(chain, memory)?;
        }
        if is_first {
            chain.first_writable = chain.last;
        }
        Some(self.layout.slot_bytes.wrapping_sub(chain.filled))
    }

    /// Where [`Self::space_left`] is.
    #[inline(always)]
    pub fn end(&self, chain: &Chain) -> At {
        self.bytes(chain.last).plus(u64::from(chain.filled))
    }

    /// Counts readable bytes that were written there.
    #[inline(always)]
    pub const fn fill(chain: &mut Chain, bytes: u32) {
        chain.filled = chain.filled.wrapping_add(bytes);
    }

    /// Lets the backend write the next bytes there, which are for this place.
    #[inline(always)]
    pub fn let_write(&mut self, chain: &mut Chain, to: At, bytes: u32) {
        let begin = to.minus(chain.filled.into());
        if let Some(slot) = self.of_mut(chain.last) {
            if chain.filled == 0 {
                slot.to = begin;
            }
            chain.scattered |= slot.to != begin;
        }
        chain.filled = chain.filled.wrapping_add(bytes);
        chain.writable = chain.writable.wrapping_add(bytes);
    }

    /// Adds a slot.
    #[inline(never)]
    fn extend(&mut self, chain: &mut Chain, memory: &impl Memory) -> Option<()> {
        let next = self.take()?;
        if let Some(last) = self.of_mut(chain.last) {
            last.next = next;
        }
        self.describe(chain, NEXT, next, memory);
        (chain.last, chain.filled) = (next, 0);
        Some(())
    }

    /// Writes the descriptor of the last slot.
    #[inline(always)]
    fn describe(&self, chain: &Chain, flags: u16, next: u16, memory: &impl Memory) {
        let is_writable = chain.first_writable != NONE;
        let flags = flags | if is_writable { WRITE } else { 0 };
        let entry = DESCRIPTOR.wrapping_mul(u64::from(chain.last));
        let at = self.layout.at(self.layout.ring.table.wrapping_add(entry));
        memory.store64(at, self.layout.slot(chain.last));
        let rest = u64::from(chain.filled) | u64::from(flags) << 32 | u64::from(next) << 48;
        memory.store64(at.plus(8), rest);
    }

    /// Posts a chain that holds the guest's chain `guest`. The backend sees it with [`Self::publish`].
    pub fn post(&mut self, chain: Chain, guest: u16, memory: &impl Memory) {
        self.describe(&chain, 0, 0, memory);
        let newest = self.newest;
        if chain.scattered
            && let Some(slot) = self.of_mut(chain.first_writable)
        {
            slot.to = SCATTERED;
        }
        if let Some(slot) = self.of_mut(chain.head) {
            (slot.guest, slot.last) = (guest, chain.last);
            (slot.first_writable, slot.writable) = (chain.first_writable, chain.writable);
            (slot.older, slot.newer) = (newest, NONE);
        }
        match self.of_mut(newest) {
            Some(slot) => slot.newer = chain.head,
            None => self.oldest = chain.head,
        }
        self.newest = chain.head;
        self.outstanding = self.outstanding.wrapping_add(1);
        self.writable = self.writable.wrapping_add(chain.writable);
        let entry = AVAILABLE_ENTRY.wrapping_mul(u64::from(self.entry(self.next)));
        let offset = self.layout.ring.available.wrapping_add(ENTRIES);
        memory.store16(self.layout.at(offset.wrapping_add(entry)), chain.head);
        self.next = self.next.wrapping_add(1);
    }

    /// Gives up a chain that was not posted.
    pub fn drop(&mut self, chain: Chain) {
        self.release(chain.head, chain.last);
    }

    /// Shows the backend the chains that were posted. `true`: it wants to be told.
    #[inline(always)]
    pub fn publish(&mut self, memory: &impl Memory) -> bool {
        let (old, new) = (self.published, self.next);
        if old == new {
            return false;
        }
        let ring = &self.layout.ring;
        // Entries, descriptors and slots before the index.
        fence(Ordering::Release);
        memory.store16(self.layout.at(ring.available.wrapping_add(INDEX)), new);
        self.published = new;
        // Either the backend sees the index when it has said when it wants to be told, or that is seen here.
        fence(Ordering::SeqCst);
        let event = ring.used.wrapping_add(ring::avail_event(self.layout.size));
        ring::has_passed(memory.load16(self.layout.at(event)), new, old)
    }

    /// The index up to which the backend has given chains back: a batch, which the guest sees at once or not yet.
    #[inline(always)]
    pub fn used_index(&self, memory: &impl Memory) -> Result<u16, Broken> {
        let offset = self.layout.ring.used.wrapping_add(INDEX);
        let index = memory.load16(self.layout.at(offset));
        if index.wrapping_sub(self.used_next) > self.outstanding {
            return Err(Broken);
        }
        // What it has written, before the index.
        fence(Ordering::Acquire);
        Ok(index)
    }

    /// Entry of the used ring that comes next.
    pub const fn used_next(&self) -> u16 {
        self.used_next
    }

    /// Takes the next entry of the used ring; the caller knows by [`Self::used_index`] that it is there. The slots stay the chain's until
    /// [`Self::done`].
    #[inline(always)]
    pub fn used(&mut self, memory: &impl Memory) -> Result<Used, Broken> {
        let entry = USED_ENTRY.wrapping_mul(u64::from(self.entry(self.used_next)));
        let offset = self.layout.ring.used.wrapping_add(ENTRIES);
        let at = self.layout.at(offset.wrapping_add(entry));
        let (id, len) = (memory.load32(at), memory.load32(at.plus(4)));
        let head = u16::try_from(id).map_err(|_| Broken)?;
        let slot = self.of(head).ok_or(Broken)?;
        if head >= self.fresh || slot.guest == NONE {
            return Err(Broken);
        }
        if len > slot.writable {
            return Err(Broken);
        }
        let used = Used {
            head,
            guest: slot.guest,
            len,
            writable: slot.writable,
            first_writable: slot.first_writable,
            scattered: self.place(slot.first_writable) == SCATTERED,
        };
        self.used_next = self.used_next.wrapping_add(1);
        self.settle(head);
        Ok(used)
    }

    /// Takes a chain out of those that are outstanding.
    fn settle(&mut self, head: u16) {
        let Some(slot) = self.of_mut(head) else {
            return;
        };
        slot.guest = NONE;
        let (older, newer, writable) = (slot.older, slot.newer, slot.writable);
        match self.of_mut(older) {
            Some(slot) => slot.newer = newer,
            None => self.oldest = newer,
        }
        match self.of_mut(newer) {
            Some(slot) => slot.older = older,
            None => self.newest = older,
        }
        self.outstanding = self.outstanding.wrapping_sub(1);
        self.writable = self.writable.wrapping_sub(writable);
    }

    /// Where the bytes of a slot are.
    #[inline(always)]
    pub fn bytes(&self, number: u16) -> At {
        self.layout.at(self.layout.slot(number))
    }

    /// Where the bytes that the backend has written to a slot are for, in a chain that is not scattered.
    #[inline(always)]
    pub fn place(&self, number: u16) -> At {
        self.of(number).map_or(SCATTERED, |slot| slot.to)
    }

    /// The slot behind this one in its chain.
    #[inline(always)]
    pub fn behind(&self, number: u16) -> u16 {
        self.of(number).map_or(NONE, |slot| slot.next)
    }

    /// Makes the slots of a chain free whose bytes were taken.
    pub fn done(&mut self, head: u16) {
        let last = self.of(head).map_or(NONE, |slot| slot.last);
        self.release(head, last);
    }

    #[inline(always)]
    fn release(&mut self, head: u16, last: u16) {
        let free = self.free;
        if let Some(slot) = self.of_mut(last) {
            slot.next = free;
            self.free = head;
        }
    }

    /// Asks the backend to tell when it has given the next chain back. `true`: it has already.
    #[inline(always)]
    pub fn ask(&self, memory: &impl Memory) -> bool {
        let ring = &self.layout.ring;
        let event = ring
            .available
            .wrapping_add(ring::used_event(self.layout.size));
        memory.store16(self.layout.at(event), self.used_next);
        // Either the backend sees this when it has given a chain back, or the chain is seen here.
        fence(Ordering::SeqCst);
        memory.load16(self.layout.at(ring.used.wrapping_add(INDEX))) != self.used_next
    }

    /// Takes the oldest chain from those that are outstanding, and returns the head of the guest's. Its slots stay taken until
    /// [`Self::forget`].
    pub fn take_back(&mut self) -> Option<u16> {
        let head = self.oldest;
        let guest = self.of(head)?.guest;
        self.settle(head);
        Some(guest)
    }

    const fn entry(&self, index: u16) -> u16 {
        index & self.layout.size.wrapping_sub(1)
    }
}

#[cfg(test)]
impl BackendRing<'_> {
    /// Number of free slots.
    pub fn free(&self) -> u16 {
        let next = |number: &u16| self.of(*number).map(|slot| slot.next);
        let used_before = core::iter::successors(Some(self.free), next);
        let list = used_before.take_while(|number| *number != NONE);
        // A list that is longer than there are slots is a circle.
        let list = list.take(usize::from(self.layout.size) + 1).count();
        self.layout.size - self.fresh + list as u16
    }
}
