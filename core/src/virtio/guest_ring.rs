//! A virtqueue of the guest's driver, of which EL2 is the device (VIRTIO 1.2, 2.7). Everything in it is hostile: each value is
//! read once, checked, and not read again without being checked again.

use core::sync::atomic::{Ordering, fence};

use bulkhead_abi::device::MAX_QUEUE_SIZE;
use bulkhead_abi::device::ring::{
    self, AVAILABLE_ENTRY, DESCRIPTOR, ENTRIES, FLAGS, INDEX, INDIRECT, NEXT, NO_INTERRUPT,
    NO_NOTIFY, USED_ENTRY, WRITE, available_bytes, used_bytes,
};

use super::memory::{Access, Area, At, Memory, Space};

/// The driver has broken a rule of the ring: the device needs a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// What the driver has said about a queue before it enabled it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    /// Number of entries.
    pub size: u16,
    /// IPA of the descriptor table.
    pub table: u64,
    /// IPA of the available ring.
    pub available: u64,
    /// IPA of the used ring.
    pub used: u64,
}

/// Features that change how the ring is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// VIRTIO_F_INDIRECT_DESC.
    pub indirect: bool,
    /// VIRTIO_F_EVENT_IDX.
    pub event_idx: bool,
    /// The device looks by itself, so it never asks to be notified; and its driver looks by itself, too, so it never interrupts.
    pub polled: bool,
}

/// The ring.
#[derive(Clone, Debug)]
pub struct GuestRing {
    size: u16,
    features: Features,
    table: Area,
    /// How many descriptors of the table lie behind one another.
    whole: u16,
    available: Area,
    used: Area,
    /// Entry of the available ring that comes next, and the index up to which the driver has filled it, as last seen.
    next: u16,
    filled: u16,
    /// Entry of the used ring that comes next.
    used_next: u16,
    /// The index that the driver sees in the used ring.
    published: u16,
    /// The driver sees that it is to notify the device, as it does before anybody has told it.
    asks: bool,
    /// The entry up to which it need not, if it is not to notify the device and has EVENT_IDX.
    silent_until: u16,
    /// It was asked to, for the chain that comes next, and that one was not there yet.
    armed: bool,
}

/// A descriptor as it was read.
#[derive(Clone, Copy)]
struct Descriptor {
    ipa: u64,
    len: u32,
    flags: u16,
    next: u16,
}

/// The walk along a chain of descriptors, with what is left of the buffer at which it is. It may be interrupted anywhere.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    /// The table in which it is: its IPA, where it is reached, and how many descriptors lie behind one another from there, of how many.
    table: u64,
    at: At,
    whole: u16,
    count: u16,
    /// The next descriptor.
    index: u16,
    /// How many descriptors may still come in the table.
    left: u16,
    /// The table is an indirect one.
    indirect: bool,
    /// There is no further descriptor.
    ended: bool,
    /// The buffer is one that the device writes to: no readable one may follow.
    writable: bool,
    /// Where the rest of the buffer starts, and how many bytes it has.
    ipa: u64,
    len: u32,
}

impl Walk {
    /// The walk along the chain that starts with the descriptor `head`, before the first buffer.
    pub const fn new(ring: &GuestRing, head: u16) -> Self {
        Self {
            table: ring.table.ipa(),
            at: ring.table.start(),
            whole: ring.whole,
            count: ring.size,
            index: head,
            left: ring.size,
            indirect: false,
            ended: false,
            writable: false,
            ipa: 0,
            len: 0,
        }
    }

    /// Goes to the next buffer. `false`: it was at the last.
    #[inline(always)]
    pub fn next(
        &mut self,
        ring: &GuestRing,
        memory: &impl Memory,
        space: &impl Space,
    ) -> Result<bool, Broken> {
        if self.ended {
            return Ok(false);
        }
        debug_assert!(
            self.index < self.count,
            "checked when it became the next one"
        );
        let found = self.descriptor(memory, space)?;
        if found.flags & INDIRECT != 0 {
            *self = self.enter(ring, found, memory, space)?;
        } else {
            self.took(found)?;
        }
        Ok(true)
    }

    /// The same as a call, for what is not done with each request.
    #[inline(never)]
    pub fn go(
        &mut self,
        ring: &GuestRing,
        memory: &impl Memory,
        space: &impl Space,
    ) -> Result<bool, Broken> {
        self.next(ring, memory, space)
    }

    /// Whether no buffer follows.
    #[inline(always)]
    pub const fn is_at_last(&self) -> bool {
        self.ended
    }

    /// What is left of the buffer for such an access: where it starts, and how many bytes it has. None, if it is for the other one.
    #[inline(always)]
    pub const fn rest(&self, access: Access) -> (u64, u32) {
        let fits = self.writable == matches!(access, Access::Write);
        (self.ipa, if fits { self.len } else { 0 })
    }

    /// What is left of the buffer, and what it is for.
    #[inline(always)]
    pub const fn buffer(&self) -> (u64, u32, Access) {
        let access = if self.writable {
            Access::Write
        } else {
            Access::Read
        };
        (self.ipa, self.len, access)
    }

    /// Bytes of the buffer, at most those that are left, were copied, or are known.
    #[inline(always)]
    pub const fn copied(&mut self, bytes: u32) {
        self.ipa = self.ipa.wrapping_add(bytes as u64);
        self.len = self.len.wrapping_sub(bytes);
    }

    /// Goes on in an indirect table. It is the last descriptor of the ring's own table that names one (2.7.5.3.2).
    #[inline(never)]
    fn enter(
        mut self,
        ring: &GuestRing,
        found: Descriptor,
        memory: &impl Memory,
        space: &impl Space,
    ) -> Result<Self, Broken> {
        let bytes = u64::from(found.len);
        let count = bytes / DESCRIPTOR;
        let fits =
            count != 0 && count <= u64::from(MAX_QUEUE_SIZE) && bytes.is_multiple_of(DESCRIPTOR);
        if self.indirect || !ring.features.indirect || found.flags & NEXT != 0 || !fits {
            return Err(Broken);
        }
        let table = Area::new(space, found.ipa, bytes, Access::Read).ok_or(Broken)?;
        (self.table, self.at) = (table.ipa(), table.start());
        self.whole = whole(&table);
        (self.count, self.left, self.index) = (count as u16, count as u16, 0);
        self.indirect = true;
        let found = self.descriptor(memory, space)?;
        if found.flags & INDIRECT != 0 {
            return Err(Broken);
        }
        self.took(found)?;
        Ok(self)
    }

    /// Reads the next descriptor.
    #[inline(always)]
    fn descriptor(&self, memory: &impl Memory, space: &impl Space) -> Result<Descriptor, Broken> {
        let offset = DESCRIPTOR.wrapping_mul(u64::from(self.index));
        let at = if self.index < self.whole {
            self.at.plus(offset)
        } else {
            self.descriptor_behind(offset, space)?
        };
        let (ipa, rest) = (memory.load64(at), memory.load64(at.plus(8)));
        Ok(Descriptor {
            ipa,
            len: rest as u32,
            flags: (rest >> 32) as u16,
            next: (rest >> 48) as u16,
        })
    }

    /// Where it is behind the first of the table's regions, which is rare.
    #[cold]
    #[inline(never)]
    fn descriptor_behind(&self, offset: u64, space: &impl Space) -> Result<At, Broken> {
        let found = space.reach(self.table.wrapping_add(offset), Access::Read);
        let found = found.filter(|(_, bytes)| *bytes >= DESCRIPTOR);
        Ok(found.ok_or(Broken)?.0)
    }

    /// Takes a descriptor, and finds the one that follows.
    #[inline(always)]
    fn took(&mut self, found: Descriptor) -> Result<(), Broken> {
        // More than the table has: a loop.
        self.left = self.left.checked_sub(1).ok_or(Broken)?;
        let writable = found.flags & WRITE != 0;
        if self.writable && !writable {
            return Err(Broken);
        }
        if found.flags & NEXT == 0 {
            self.ended = true;
        } else if found.next >= self.count {
            return Err(Broken);
        }
        self.index = found.next;
        (self.ipa, self.len, self.writable) = (found.ipa, found.len, writable);
        Ok(())
    }
}

/// How many descriptors of a table lie behind one another where it is reached.
fn whole(table: &Area) -> u16 {
    u16::try_from(table.behind() / DESCRIPTOR).unwrap_or(u16::MAX)
}

/// Two places of so many bytes in parts of a ring, wherever these lie.
#[cold]
#[inline(never)]
fn places(
    space: &impl Space,
    (one, at): (&Area, u64),
    (other, behind): (&Area, u64),
    bytes: u64,
) -> Option<(At, At)> {
    let first = one.look_up(space, at, bytes)?;
    Some((first, other.look_up(space, behind, bytes)?))
}

impl GuestRing {
    /// The ring as the driver has set it up, empty. `None`: it cannot be there (2.7: size a power of two, alignment of the
    /// parts, memory that the VM has).
    pub fn new(setup: &Setup, features: Features, space: &impl Space) -> Option<Self> {
        let size = setup.size;
        let aligned = setup.table.is_multiple_of(16)
            && setup.available.is_multiple_of(2)
            && setup.used.is_multiple_of(4);
        if !size.is_power_of_two() || size > MAX_QUEUE_SIZE || !aligned {
            return None;
        }
        let table = DESCRIPTOR.wrapping_mul(u64::from(size));
        let table = Area::new(space, setup.table, table, Access::Read)?;
        Some(Self {
            size,
            features,
            whole: whole(&table),
            table,
            available: Area::new(space, setup.available, available_bytes(size), Access::Read)?,
            used: Area::new(space, setup.used, used_bytes(size), Access::Write)?,
            next: 0,
            filled: 0,
            used_next: 0,
            published: 0,
            asks: true,
            silent_until: 0,
            armed: false,
        })
    }

    /// Whether the driver has made another chain available.
    #[inline(never)]
    pub fn has_next(&mut self, memory: &impl Memory, space: &impl Space) -> Result<bool, Broken> {
        if self.next != self.filled {
            return Ok(true);
        }
        match self.available.whole(INDEX, 2) {
            Some(at) => self.look(memory, at),
            None => self.has_next_behind(memory, space),
        }
    }

    // Like this one, what is done where the ring lies in two regions is a function of its own, so that what is done for each chain has no stack frame.
    #[cold]
    #[inline(never)]
    fn has_next_behind(
        &mut self,
        memory: &impl Memory,
        space: &impl Space,
    ) -> Result<bool, Broken> {
        let at = self.available.look_up(space, INDEX, 2).ok_or(Broken)?;
        self.look(memory, at)
    }

    /// Reads the index up to which the driver has filled the available ring, which is there.
    #[inline(never)]
    fn look(&mut self, memory: &impl Memory, at: At) -> Result<bool, Broken> {
        let index = memory.load16(at);
        if index.wrapping_sub(self.next) > self.size {
            return Err(Broken);
        }
        self.filled = index;
        // The entries, and what they lead to, were written before the index.
        fence(Ordering::Acquire);
        Ok(index != self.next)
    }

    /// Takes the head of the next chain; the caller knows by [`Self::has_next`] that it is there.
    #[inline(always)]
    pub fn take(&mut self, memory: &impl Memory, space: &impl Space) -> Result<u16, Broken> {
        let entry = AVAILABLE_ENTRY.wrapping_mul(u64::from(self.entry(self.next)));
        let at = self.available.at(space, ENTRIES.wrapping_add(entry), 2);
        let head = memory.load16(at.ok_or(Broken)?);
        if head >= self.size {
            return Err(Broken);
        }
        self.next = self.next.wrapping_add(1);
        self.armed = false;
        Ok(head)
    }

    /// The buffer of a chain that has just one, named in the ring's own table and behind one another in memory, as most have: where it is, and its
    /// bytes. `None`: a [`Walk`] finds out what the chain is.
    #[inline(always)]
    pub fn only_buffer(
        &self,
        head: u16,
        access: Access,
        memory: &impl Memory,
        space: &impl Space,
    ) -> Option<(At, u32)> {
        if head >= self.whole {
            return None;
        }
        let at = self
            .table
            .start()
            .plus(DESCRIPTOR.wrapping_mul(head.into()));
        let (ipa, rest) = (memory.load64(at), memory.load64(at.plus(8)));
        let (len, flags) = (rest as u32, (rest >> 32) as u16);
        let wanted = if access == Access::Write { WRITE } else { 0 };
        if flags & (NEXT | INDIRECT | WRITE) != wanted {
            return None;
        }
        let (at, behind) = space.reach(ipa, access)?;
        (behind >= len.into()).then_some((at, len))
    }

    /// Asks the driver to notify the device of the next chain. `true`: there is one already.
    #[inline(never)]
    pub fn ask(&mut self, memory: &impl Memory, space: &impl Space) -> Result<bool, Broken> {
        if self.features.polled {
            return Ok(false);
        }
        let (offset, _) = self.asks_by();
        match (self.available.whole(INDEX, 2), self.used.whole(offset, 2)) {
            (Some(index), Some(event)) => self.ask_at(memory, index, event),
            _ => self.ask_behind(memory, space),
        }
    }

    #[cold]
    #[inline(never)]
    fn ask_behind(&mut self, memory: &impl Memory, space: &impl Space) -> Result<bool, Broken> {
        let (offset, _) = self.asks_by();
        let (index, event) =
            places(space, (&self.available, INDEX), (&self.used, offset), 2).ok_or(Broken)?;
        self.ask_at(memory, index, event)
    }

    /// Where in the used ring the driver is asked, and how.
    #[inline(always)]
    const fn asks_by(&self) -> (u64, u16) {
        if self.features.event_idx {
            (ring::avail_event(self.size), self.next)
        } else {
            (FLAGS, 0)
        }
    }

    /// Asks by these places in the rings.
    #[inline(never)]
    fn ask_at(&mut self, memory: &impl Memory, index: At, event: At) -> Result<bool, Broken> {
        // One that was asked notifies of what it adds; that may have been taken note of already.
        if !self.armed {
            let (_, value) = self.asks_by();
            memory.store16(event, value);
            self.asks = true;
            // Either the driver sees this when it has added a chain, or the chain is seen here.
            fence(Ordering::SeqCst);
        }
        self.armed = memory.load16(index) == self.next;
        Ok(!self.armed)
    }

    /// Tells the driver that it need not notify the device, which looks by itself, or has no use for more. With EVENT_IDX the entry of which
    /// the device wants to be notified lies behind as many as the ring has, and not before: some drivers notify of whatever comes behind that
    /// entry, and not of itself alone. It is moved on when the device is half-way there.
    #[inline(always)]
    pub fn hush(&mut self, memory: &impl Memory, space: &impl Space) -> Result<(), Broken> {
        let left = self.silent_until.wrapping_sub(self.next);
        if self.asks || left <= self.size / 2 {
            self.hush_anew(memory, space)?;
        }
        Ok(())
    }

    #[inline(never)]
    fn hush_anew(&mut self, memory: &impl Memory, space: &impl Space) -> Result<(), Broken> {
        (self.asks, self.armed) = (false, false);
        let (offset, value) = if self.features.event_idx {
            self.silent_until = self.next.wrapping_add(self.size);
            (ring::avail_event(self.size), self.silent_until)
        } else {
            (FLAGS, NO_NOTIFY)
        };
        let at = self.used.look_up(space, offset, 2).ok_or(Broken)?;
        memory.store16(at, value);
        Ok(())
    }

    /// Gives a chain back, in whose buffers the device has written `len` bytes. The driver sees it with [`Self::publish`].
    #[inline(never)]
    pub fn give(
        &mut self,
        head: u16,
        len: u32,
        memory: &impl Memory,
        space: &impl Space,
    ) -> Result<(), Broken> {
        match self.used.whole(self.used_entry(), USED_ENTRY) {
            Some(at) => {
                self.give_at(head, len, memory, (at, at.plus(4)));
                Ok(())
            }
            None => self.give_behind(head, len, memory, space),
        }
    }

    #[cold]
    #[inline(never)]
    fn give_behind(
        &mut self,
        head: u16,
        len: u32,
        memory: &impl Memory,
        space: &impl Space,
    ) -> Result<(), Broken> {
        // It is aligned to 4 bytes only: two regions may meet in it.
        let offset = self.used_entry();
        let places = places(
            space,
            (&self.used, offset),
            (&self.used, offset.wrapping_add(4)),
            4,
        );
        self.give_at(head, len, memory, places.ok_or(Broken)?);
        Ok(())
    }

    /// Where in the used ring the next entry is.
    #[inline(always)]
    fn used_entry(&self) -> u64 {
        let entry = USED_ENTRY.wrapping_mul(u64::from(self.entry(self.used_next)));
        ENTRIES.wrapping_add(entry)
    }

    #[inline(always)]
    fn give_at(&mut self, head: u16, len: u32, memory: &impl Memory, (id, behind): (At, At)) {
        memory.store32(id, head.into());
        memory.store32(behind, len);
        self.used_next = self.used_next.wrapping_add(1);
    }

    /// Shows the driver the chains that were given back. `true`: it wants an interrupt for it, which the driver of a polled device
    /// never does: with a bit of InterruptStatus it would find something to acknowledge, by an exit.
    #[inline(always)]
    pub fn publish(&mut self, memory: &impl Memory, space: &impl Space) -> Result<bool, Broken> {
        if self.published == self.used_next {
            return Ok(false);
        }
        self.publish_new(memory, space)
    }

    #[inline(never)]
    fn publish_new(&mut self, memory: &impl Memory, space: &impl Space) -> Result<bool, Broken> {
        let index = self.used.whole(INDEX, 2);
        match (index, self.available.whole(self.asked_by(), 2)) {
            (Some(index), Some(event)) => self.publish_at(memory, index, event),
            _ => self.publish_behind(memory, space),
        }
    }

    #[cold]
    #[inline(never)]
    fn publish_behind(&mut self, memory: &impl Memory, space: &impl Space) -> Result<bool, Broken> {
        let event = (&self.available, self.asked_by());
        let (event, index) = places(space, event, (&self.used, INDEX), 2).ok_or(Broken)?;
        self.publish_at(memory, index, event)
    }

    /// Where in the available ring the driver says when it wants to be interrupted.
    #[inline(always)]
    const fn asked_by(&self) -> u64 {
        if self.features.event_idx {
            ring::used_event(self.size)
        } else {
            FLAGS
        }
    }

    /// Publishes by these places in the rings.
    #[inline(never)]
    fn publish_at(&mut self, memory: &impl Memory, index: At, event: At) -> Result<bool, Broken> {
        let (old, new) = (self.published, self.used_next);
        // Entries and buffers before the index.
        fence(Ordering::Release);
        memory.store16(index, new);
        self.published = new;
        // Either the driver sees the index when it has said when it wants to be interrupted, or that is seen here.
        fence(Ordering::SeqCst);
        let said = memory.load16(event);
        Ok(if self.features.event_idx {
            ring::has_passed(said, new, old)
        } else {
            !self.features.polled && said & NO_INTERRUPT == 0
        })
    }

    const fn entry(&self, index: u16) -> u16 {
        index & self.size.wrapping_sub(1)
    }
}
