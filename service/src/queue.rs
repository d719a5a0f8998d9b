//! The device's side of a split virtqueue (VIRTIO 1.2, 2.7) in a window. The driver is EL2: its
//! descriptors hold offsets in the window and none is indirect. VIRTIO_F_EVENT_IDX is in use,
//! always, and in both directions.
//!
//! What EL2 writes is believed where disbelief would cost, but no value of it leads out of the
//! window, or to a loop that does not end.

use core::sync::atomic::{Ordering, fence};

use bulkhead_abi::device::MAX_QUEUE_SIZE;
use bulkhead_abi::device::ring::{self, Ring};

use crate::memory::{Memory, Outside};

/// The ring is not as the standard says, or not in the window: the session is to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl From<Outside> for Broken {
    fn from(_: Outside) -> Self {
        Self
    }
}

/// A queue from the device's side.
#[derive(Clone, Debug)]
pub struct Queue {
    ring: Ring,
    size: u16,
    /// Index of the next entry to take from the available ring.
    next: u16,
    /// Index behind the last entry of the used ring.
    used: u16,
    /// `used` as the driver sees it.
    published: u16,
}

impl Queue {
    /// A queue of `size` entries with its descriptor table at `table` whose rings are empty.
    /// `None` if they are not in the memory, or if no queue has that size or place (2.7).
    pub fn new(memory: &impl Memory, table: u64, size: u32) -> Option<Self> {
        let size = u16::try_from(size).ok()?;
        let aligned = table.is_multiple_of(ring::DESCRIPTOR);
        if !size.is_power_of_two() || size > MAX_QUEUE_SIZE || !aligned {
            return None;
        }
        // The rings of the largest queue are far shorter than this: no sum of offsets wraps.
        if table > u64::MAX / 2 {
            return None;
        }
        let ring = Ring::new(table, size);
        memory.holds(table, ring.end - table).then_some(Self {
            ring,
            size,
            next: 0,
            used: 0,
            published: 0,
        })
    }

    /// Takes the next available chain; `None` if there is none.
    #[inline(always)]
    pub fn take<M: Memory>(&mut self, memory: &M) -> Result<Option<Chain>, Broken> {
        if self.waiting(memory)? == 0 {
            return Ok(None);
        }
        // What the driver wrote before the index is read after it (2.7.13.2).
        fence(Ordering::Acquire);
        let entry = u64::from(self.next & (self.size - 1)) * ring::AVAILABLE_ENTRY;
        let head = memory.load16(self.ring.available + ring::ENTRIES + entry)?;
        let chain = Chain::walk(memory, self, head)?;
        self.next = self.next.wrapping_add(1);
        Ok(Some(chain))
    }

    /// Puts back the `chains` chains that were taken last, as if they had not been taken. None of
    /// them may have been used.
    pub fn untake(&mut self, chains: u16) {
        self.next = self.next.wrapping_sub(chains);
    }

    /// Number of chains that wait to be taken.
    #[inline(always)]
    fn waiting(&self, memory: &impl Memory) -> Result<u16, Broken> {
        let index = memory.load16(self.ring.available + ring::INDEX)?;
        let waiting = index.wrapping_sub(self.next);
        if waiting > self.size {
            return Err(Broken);
        }
        Ok(waiting)
    }

    /// Gives a chain back of which `bytes` bytes were written. The driver does not see it before
    /// [`Self::publish`].
    #[inline(always)]
    pub fn give_back(
        &mut self,
        memory: &impl Memory,
        chain: &Chain,
        bytes: u32,
    ) -> Result<(), Broken> {
        let entry = u64::from(self.used & (self.size - 1)) * ring::USED_ENTRY;
        let at = self.ring.used + ring::ENTRIES + entry;
        memory.store32(at, u32::from(chain.head))?;
        memory.store32(at + 4, bytes)?;
        self.used = self.used.wrapping_add(1);
        Ok(())
    }

    /// Shows the driver what was given back. Returns whether it wants to be told (2.7.7.2).
    pub fn publish(&mut self, memory: &impl Memory) -> Result<bool, Broken> {
        let old = self.published;
        if self.used == old {
            return Ok(false);
        }
        fence(Ordering::Release);
        memory.store16(self.ring.used + ring::INDEX, self.used)?;
        self.published = self.used;
        // The driver writes `used_event` and then looks at the index; this side writes the index
        // and then looks at `used_event`. One of the two has to see the other's store.
        fence(Ordering::SeqCst);
        let event = memory.load16(self.ring.available + ring::used_event(self.size))?;
        Ok(ring::has_passed(event, self.used, old))
    }

    /// Asks the driver to tell when it makes the next chain available, and looks again: returns
    /// whether there is one already, of which it may not tell (2.7.10).
    pub fn arm(&self, memory: &impl Memory) -> Result<bool, Broken> {
        memory.store16(self.ring.used + ring::avail_event(self.size), self.next)?;
        fence(Ordering::SeqCst);
        Ok(self.waiting(memory)? != 0)
    }
}

/// A chain of descriptors that was taken from a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    head: u16,
    table: u64,
    size: u16,
    /// Bytes that the device reads.
    readable: u32,
    /// Bytes that it writes.
    writable: u32,
    /// Its first descriptor.
    first: Descriptor,
    /// The first descriptor of writable bytes, if there are any.
    first_writable: Descriptor,
}

impl Chain {
    #[inline(always)]
    fn walk(memory: &impl Memory, queue: &Queue, head: u16) -> Result<Self, Broken> {
        let mut chain = Self {
            head,
            table: queue.ring.table,
            size: queue.size,
            readable: 0,
            writable: 0,
            first: Descriptor::default(),
            first_writable: Descriptor::default(),
        };
        let mut next = head;
        let mut writes = false;
        for number in 0..queue.size {
            let descriptor = Descriptor::load(memory, chain.table, chain.size, next)?;
            if number == 0 {
                chain.first = descriptor;
            }
            if !memory.holds(descriptor.at, u64::from(descriptor.bytes)) {
                return Err(Broken);
            }
            let write = descriptor.flags & ring::WRITE != 0;
            if descriptor.flags & ring::INDIRECT != 0 || writes && !write {
                return Err(Broken);
            }
            if write && !writes {
                writes = true;
                chain.first_writable = descriptor;
            }
            let sum = if write {
                &mut chain.writable
            } else {
                &mut chain.readable
            };
            *sum = sum.checked_add(descriptor.bytes).ok_or(Broken)?;
            if descriptor.flags & ring::NEXT == 0 {
                return Ok(chain);
            }
            next = descriptor.next;
        }
        // More descriptors than the queue has: a circle.
        Err(Broken)
    }

    /// Its id: the number of its first descriptor.
    pub fn head(&self) -> u16 {
        self.head
    }

    /// Number of bytes that the device reads.
    pub fn readable(&self) -> u32 {
        self.readable
    }

    /// Number of bytes that the device may write.
    pub fn writable(&self) -> u32 {
        self.writable
    }

    /// The bytes that the device reads.
    pub fn reader(&self) -> Cursor {
        self.cursor(self.first, self.readable)
    }

    /// The bytes that the device may write.
    pub fn writer(&self) -> Cursor {
        self.cursor(self.first_writable, self.writable)
    }

    fn cursor(&self, first: Descriptor, left: u32) -> Cursor {
        Cursor {
            table: self.table,
            size: self.size,
            next: first.next,
            at: first.at,
            rest: first.bytes,
            left,
            descriptors: self.size,
        }
    }
}

/// A descriptor, loaded once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Descriptor {
    at: u64,
    bytes: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    #[inline(always)]
    fn load(memory: &impl Memory, table: u64, size: u16, number: u16) -> Result<Self, Broken> {
        if number >= size {
            return Err(Broken);
        }
        let descriptor = table + u64::from(number) * ring::DESCRIPTOR;
        let at = memory.load64(descriptor)?;
        // Length, flags and next lie in one word, in this order.
        let rest = memory.load64(descriptor + ring::DESCRIPTOR_LEN)?;
        Ok(Self {
            at,
            bytes: rest as u32,
            flags: (rest >> 32) as u16,
            next: (rest >> 48) as u16,
        })
    }
}

/// Bytes of one window that follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the window.
    pub at: u64,
    /// Number of bytes.
    pub bytes: u32,
}

/// A place in the readable or the writable bytes of a chain. How a driver has cut them into
/// buffers means nothing (2.7.4.1), so bytes are taken from here, never descriptors.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    table: u64,
    size: u16,
    /// The descriptor that is loaded next.
    next: u16,
    /// What is left of the one that was loaded last: where, and how many bytes.
    at: u64,
    rest: u32,
    left: u32,
    /// Descriptors that may still be loaded: a bound for loops, whatever the table says by now.
    descriptors: u16,
}

impl Cursor {
    /// Number of bytes that are left.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Takes the next bytes that lie in one piece, at most `limit`. `None` at the end.
    #[inline(always)]
    pub fn take(&mut self, memory: &impl Memory, limit: u32) -> Result<Option<Piece>, Broken> {
        let limit = limit.min(self.left);
        if limit == 0 {
            return Ok(None);
        }
        self.find(memory)?;
        let (at, bytes) = (self.at, self.rest.min(limit));
        // Whoever accesses the piece finds out whether it is inside.
        self.at = at.wrapping_add(u64::from(bytes));
        self.rest -= bytes;
        self.left -= bytes;
        Ok(Some(Piece { at, bytes }))
    }

    /// Skips `bytes` bytes, or what is left if that is less.
    pub fn skip(&mut self, memory: &impl Memory, bytes: u32) -> Result<(), Broken> {
        let mut rest = bytes;
        while let Some(piece) = self.take(memory, rest)? {
            rest -= piece.bytes;
        }
        Ok(())
    }

    /// Goes to the next descriptor that has bytes, unless the present one has some.
    #[inline(always)]
    fn find(&mut self, memory: &impl Memory) -> Result<(), Broken> {
        while self.rest == 0 {
            self.descriptors = self.descriptors.checked_sub(1).ok_or(Broken)?;
            let now = Descriptor::load(memory, self.table, self.size, self.next)?;
            (self.at, self.rest, self.next) = (now.at, now.bytes, now.next);
        }
        Ok(())
    }

    /// Takes the next `bytes` bytes if they all lie in one piece, as headers and answers mostly do; returns where they are.
    #[inline(always)]
    fn take_whole(&mut self, memory: &impl Memory, bytes: usize) -> Result<Option<u64>, Broken> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        if bytes > self.left || bytes == 0 {
            return Ok(None);
        }
        self.find(memory)?;
        if bytes > self.rest {
            return Ok(None);
        }
        let at = self.at;
        self.at = at.wrapping_add(bytes.into());
        self.rest -= bytes;
        self.left -= bytes;
        Ok(Some(at))
    }

    /// Reads until `into` is full or nothing is left; returns the number of bytes.
    #[inline(always)]
    pub fn read(&mut self, memory: &impl Memory, into: &mut [u8]) -> Result<usize, Broken> {
        if let Some(at) = self.take_whole(memory, into.len())? {
            memory.read(at, into)?;
            return Ok(into.len());
        }
        self.read_pieces(memory, into)
    }

    #[inline(never)]
    fn read_pieces(&mut self, memory: &impl Memory, into: &mut [u8]) -> Result<usize, Broken> {
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let limit = u32::try_from(rest.len()).unwrap_or(u32::MAX);
            let Some(piece) = self.take(memory, limit)? else {
                break;
            };
            let bytes = piece.bytes as usize;
            memory.read(piece.at, rest.get_mut(..bytes).ok_or(Broken)?)?;
            done += bytes;
        }
        Ok(done)
    }

    /// Writes until all of `from` is written or nothing is left; returns the number of bytes.
    #[inline(always)]
    pub fn write(&mut self, memory: &impl Memory, from: &[u8]) -> Result<usize, Broken> {
        if let Some(at) = self.take_whole(memory, from.len())? {
            memory.write(at, from)?;
            return Ok(from.len());
        }
        self.write_pieces(memory, from)
    }

    #[inline(never)]
    fn write_pieces(&mut self, memory: &impl Memory, from: &[u8]) -> Result<usize, Broken> {
        let mut done = 0;
        while let Some(rest) = from.get(done..).filter(|rest| !rest.is_empty()) {
            let limit = u32::try_from(rest.len()).unwrap_or(u32::MAX);
            let Some(piece) = self.take(memory, limit)? else {
                break;
            };
            let bytes = piece.bytes as usize;
            memory.write(piece.at, rest.get(..bytes).ok_or(Broken)?)?;
            done += bytes;
        }
        Ok(done)
    }

    /// Writes `bytes` zeros, or as many as are left.
    pub fn zero(&mut self, memory: &impl Memory, bytes: u32) -> Result<(), Broken> {
        let mut rest = bytes;
        while let Some(piece) = self.take(memory, rest)? {
            memory.zero(piece.at, u64::from(piece.bytes))?;
            rest -= piece.bytes;
        }
        Ok(())
    }

    /// Copies at most `bytes` bytes to where `to` stands; returns how many there were, and were
    /// places for.
    pub fn copy<M: Memory>(
        &mut self,
        memory: &M,
        to: &mut Self,
        to_memory: &M,
        bytes: u32,
    ) -> Result<u32, Broken> {
        let mut done = 0;
        while let Some(into) = to.take(to_memory, (bytes - done).min(self.left))? {
            let mut at = into.at;
            let mut rest = into.bytes;
            while let Some(piece) = self.take(memory, rest)? {
                memory.copy(piece.at, to_memory, at, u64::from(piece.bytes))?;
                at = at.checked_add(u64::from(piece.bytes)).ok_or(Broken)?;
                rest -= piece.bytes;
            }
            done += into.bytes;
        }
        Ok(done)
    }
}
