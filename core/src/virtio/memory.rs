//! Memory of VMs as rings and buffers are reached in it: by whom it is mapped, at EL2 or in a test, is not known here.

/// An address at which memory of a VM is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At(u64);

impl At {
    /// The place at an address.
    pub const fn new(address: u64) -> Self {
        Self(address)
    }

    /// The address.
    pub const fn address(self) -> u64 {
        self.0
    }

    /// The place `bytes` behind this one.
    pub const fn plus(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// The place `bytes` before this one.
    pub const fn minus(self, bytes: u64) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }
}

/// Accesses to memory that a VM may change at the same time. Each load reads once, and a load or store of a
/// naturally aligned place is single-copy atomic. No order is promised between them: who needs one uses fences.
pub trait Memory {
    /// Reads a byte.
    fn load8(&self, at: At) -> u8;
    /// Reads 16 bits.
    fn load16(&self, at: At) -> u16;
    /// Reads 32 bits.
    fn load32(&self, at: At) -> u32;
    /// Reads 64 bits, at any alignment.
    fn load64(&self, at: At) -> u64;
    /// Writes a byte.
    fn store8(&self, at: At, value: u8);
    /// Writes 16 bits.
    fn store16(&self, at: At, value: u16);
    /// Writes 32 bits.
    fn store32(&self, at: At, value: u32);
    /// Writes 64 bits.
    fn store64(&self, at: At, value: u64);
    /// Copies bytes; the two places do not overlap.
    fn copy(&self, from: At, to: At, bytes: u64);
    /// Reads bytes that lie behind one another.
    fn read(&self, from: At, to: &mut [u8]) {
        for (offset, byte) in (0u64..).zip(to) {
            *byte = self.load8(from.plus(offset));
        }
    }
    /// Writes bytes that lie behind one another.
    fn write(&self, to: At, from: &[u8]) {
        for (offset, byte) in (0u64..).zip(from) {
            self.store8(to.plus(offset), *byte);
        }
    }
}

/// What the device does with memory of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads, so the VM itself must be allowed to read.
    Read,
    /// It writes, so the VM itself must be allowed to write.
    Write,
}

/// The memory that a VM may name in its rings.
pub trait Space {
    /// Where `ipa` is reached, and how many bytes from there on lie behind one another: 1 at least. `None` if the VM has no
    /// memory there, or may not access it so itself.
    fn reach(&self, ipa: u64, access: Access) -> Option<(At, u64)>;
}

/// A part of a ring that lies in the guest's memory.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    ipa: u64,
    access: Access,
    /// Where it starts, and how many of its bytes lie behind one another from there: all, but where two of the VM's
    /// regions meet.
    at: At,
    bytes: u64,
}

impl Area {
    /// The area at `ipa`, if the VM may access all of its `bytes` so.
    pub fn new(space: &impl Space, ipa: u64, bytes: u64, access: Access) -> Option<Self> {
        let (at, found) = space.reach(ipa, access)?;
        let end = ipa.checked_add(bytes)?;
        let mut next = ipa.checked_add(found)?;
        // Regions that meet are few; somebody who has more of them than this has no queue there.
        for _ in 0..4 {
            if next >= end {
                break;
            }
            next = next.checked_add(space.reach(next, access)?.1)?;
        }
        (next >= end).then_some(Self {
            ipa,
            access,
            at,
            bytes: found,
        })
    }

    /// Its IPA.
    pub const fn ipa(&self) -> u64 {
        self.ipa
    }

    /// Where it is reached.
    pub const fn start(&self) -> At {
        self.at
    }

    /// How many of its bytes, or more, lie behind one another from there.
    pub const fn behind(&self) -> u64 {
        self.bytes
    }

    /// Where `bytes` at `offset` are reached. `None` only where a single access would go across the border of two regions.
    #[inline(always)]
    pub fn at(&self, space: &impl Space, offset: u64, bytes: u64) -> Option<At> {
        match self.whole(offset, bytes) {
            None => self.at_behind(space, offset, bytes),
            at => at,
        }
    }

    /// The same, if they are in the first of its regions.
    #[inline(always)]
    pub fn whole(&self, offset: u64, bytes: u64) -> Option<At> {
        (offset.wrapping_add(bytes) <= self.bytes).then(|| self.at.plus(offset))
    }

    /// The same as a call, for what is done once for many chains.
    #[inline(never)]
    pub fn look_up(&self, space: &impl Space, offset: u64, bytes: u64) -> Option<At> {
        self.at(space, offset, bytes)
    }

    /// The same behind the first of its regions, which is rare.
    #[cold]
    #[inline(never)]
    fn at_behind(&self, space: &impl Space, offset: u64, bytes: u64) -> Option<At> {
        let (at, found) = space.reach(self.ipa.wrapping_add(offset), self.access)?;
        (bytes <= found).then_some(at)
    }
}
