//! Where the bytes of a disk are.
//!
//! | store | bytes are in | they survive a restart of the service VM | FLUSH |
//! | --- | --- | --- | --- |
//! | [`Ram`] | memory of the plan | yes, where the plan keeps that memory | has nothing to do |
//! | [`Image`] | the boot image | nothing is written | has nothing to do |
//! | [`Overlay`] | the boot image, and memory of the plan | as for [`Ram`] | has nothing to do |
//!
//! FLUSH promises that what was acknowledged before is as durable as the disk makes it (VIRTIO 1.2,
//! 5.2.6.2). Here that is memory that outlives the service VM but not the board: there is no cache
//! in front of it, a write is in its place when it is acknowledged, and so each of these disks is a
//! write-through one. Nothing of them survives that the board is switched off.
//!
//! A restart in the middle of a write leaves some of its bytes old and some new, within a sector,
//! too. The request was not acknowledged then: EL2 posts it anew (`replay`), which makes all of them
//! new.

use core::sync::atomic::{Ordering, fence};

use crate::memory::{Memory, Outside};

/// The bytes of a disk. Ranges that are not inside are [`Outside`], and nothing is changed.
pub trait Store<M: Memory> {
    /// The disk's length in bytes.
    fn bytes(&self) -> u64;
    /// Whether it can only be read.
    fn is_read_only(&self) -> bool;
    /// Copies bytes of the disk into a window.
    fn read(&self, at: u64, window: &M, to: u64, bytes: u64) -> Result<(), Outside>;
    /// Copies bytes of a window to the disk. They are there when this returns.
    fn write(&self, at: u64, window: &M, from: u64, bytes: u64) -> Result<(), Outside>;
    /// Sets bytes to zero. They are zero when this returns.
    fn zero(&self, at: u64, bytes: u64) -> Result<(), Outside>;
    /// Makes durable what was written.
    fn flush(&self) -> Result<(), Outside>;
}

/// Disk in RAM, zero at first as memory of the plan is.
#[derive(Clone, Debug)]
pub struct Ram<M>(M);

impl<M: Memory> Ram<M> {
    /// A disk as long as the memory.
    pub fn new(memory: M) -> Self {
        Self(memory)
    }
}

impl<M: Memory> Store<M> for Ram<M> {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, at: u64, window: &M, to: u64, bytes: u64) -> Result<(), Outside> {
        self.0.copy(at, window, to, bytes)
    }

    fn write(&self, at: u64, window: &M, from: u64, bytes: u64) -> Result<(), Outside> {
        window.copy(from, &self.0, at, bytes)
    }

    fn zero(&self, at: u64, bytes: u64) -> Result<(), Outside> {
        self.0.zero(at, bytes)
    }

    fn flush(&self) -> Result<(), Outside> {
        Ok(())
    }
}

/// Read-only disk with the bytes of an image; zeros follow if the image is shorter.
#[derive(Clone, Debug)]
pub struct Image<M> {
    image: M,
    bytes: u64,
}

impl<M: Memory> Image<M> {
    /// A disk of `bytes` bytes that starts with the bytes of `image`.
    pub fn new(image: M, bytes: u64) -> Self {
        Self { image, bytes }
    }

    fn read(&self, at: u64, to: &M, to_at: u64, bytes: u64) -> Result<(), Outside> {
        check(at, bytes, self.bytes)?;
        let there = self.image.bytes().saturating_sub(at).min(bytes);
        if there > 0 {
            self.image.copy(at, to, to_at, there)?;
        }
        let behind = to_at.checked_add(there).ok_or(Outside)?;
        to.zero(behind, bytes - there)
    }
}

impl<M: Memory> Store<M> for Image<M> {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn read(&self, at: u64, window: &M, to: u64, bytes: u64) -> Result<(), Outside> {
        self.read(at, window, to, bytes)
    }

    fn write(&self, _: u64, _: &M, _: u64, _: u64) -> Result<(), Outside> {
        Err(Outside)
    }

    fn zero(&self, _: u64, _: u64) -> Result<(), Outside> {
        Err(Outside)
    }

    fn flush(&self) -> Result<(), Outside> {
        Ok(())
    }
}

/// Bytes of a block of an [`Overlay`].
pub const BLOCK: u64 = 4096;

/// Disk that starts as an image and is written in memory: copy on write.
///
/// The memory holds a map with a bit for each block, up to a multiple of [`BLOCK`], and a place for
/// each block. A block whose bit is 0 is the image's, so that zeros are a map of a disk that was
/// never written. A bit is set behind the bytes of its block: whenever a life of the service VM
/// ends, the next finds each block whole, as the image has it or as it was written.
#[derive(Clone, Debug)]
pub struct Overlay<M> {
    image: Image<M>,
    memory: M,
}

/// Bytes of memory that an [`Overlay`] of `bytes` bytes needs, whole blocks; `None` if no memory is
/// that long.
pub fn overlay_bytes(bytes: u64) -> Option<u64> {
    let blocks = bytes.checked_next_multiple_of(BLOCK)?;
    blocks.checked_add(map_bytes(bytes))
}

impl<M: Memory> Overlay<M> {
    /// A disk of `bytes` bytes over the image, with what an earlier life wrote to it. `None` if
    /// the memory is too short ([`overlay_bytes`]).
    pub fn new(image: M, memory: M, bytes: u64) -> Option<Self> {
        let needed = overlay_bytes(bytes)?;
        memory.holds(0, needed).then_some(Self {
            image: Image::new(image, bytes),
            memory,
        })
    }

    fn is_written(&self, block: u64) -> Result<bool, Outside> {
        let (word, bit) = place(block);
        let written = self.memory.load64(word)? & bit != 0;
        // The bytes of the block are read behind its bit.
        fence(Ordering::Acquire);
        Ok(written)
    }

    fn set_written(&self, block: u64) -> Result<(), Outside> {
        let (word, bit) = place(block);
        let map = self.memory.load64(word)?;
        // The block is in its place before its bit says so.
        fence(Ordering::Release);
        self.memory.store64(word, map | bit)
    }

    /// Where the byte `at` of the disk has its place in the memory.
    fn data(&self, at: u64) -> Result<u64, Outside> {
        at.checked_add(map_bytes(self.image.bytes)).ok_or(Outside)
    }

    /// Calls `change` for the part of each block in the range, with its place in the disk and its
    /// length, and has the block in memory by then and its bit set behind.
    fn change(
        &self,
        at: u64,
        bytes: u64,
        mut change: impl FnMut(u64, u64) -> Result<(), Outside>,
    ) -> Result<(), Outside> {
        check(at, bytes, self.image.bytes)?;
        for part in parts(at, bytes) {
            let written = self.is_written(part.block)?;
            if !written && !part.is_whole() {
                self.fetch(part.block)?;
            }
            change(part.at, part.bytes)?;
            if !written {
                self.set_written(part.block)?;
            }
        }
        Ok(())
    }

    /// Copies a block of the image into memory.
    fn fetch(&self, block: u64) -> Result<(), Outside> {
        let start = block * BLOCK;
        let bytes = (self.image.bytes - start).min(BLOCK);
        self.image
            .read(start, &self.memory, self.data(start)?, bytes)
    }
}

impl<M: Memory> Store<M> for Overlay<M> {
    fn bytes(&self) -> u64 {
        self.image.bytes
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, at: u64, window: &M, to: u64, bytes: u64) -> Result<(), Outside> {
        check(at, bytes, self.image.bytes)?;
        for part in parts(at, bytes) {
            let to = to.checked_add(part.at - at).ok_or(Outside)?;
            if self.is_written(part.block)? {
                let data = self.data(part.at)?;
                self.memory.copy(data, window, to, part.bytes)?;
            } else {
                self.image.read(part.at, window, to, part.bytes)?;
            }
        }
        Ok(())
    }

    fn write(&self, at: u64, window: &M, from: u64, bytes: u64) -> Result<(), Outside> {
        self.change(at, bytes, |part, bytes| {
            let from = from.checked_add(part - at).ok_or(Outside)?;
            window.copy(from, &self.memory, self.data(part)?, bytes)
        })
    }

    fn zero(&self, at: u64, bytes: u64) -> Result<(), Outside> {
        self.change(at, bytes, |part, bytes| {
            self.memory.zero(self.data(part)?, bytes)
        })
    }

    fn flush(&self) -> Result<(), Outside> {
        Ok(())
    }
}

/// A store of any kind.
#[derive(Clone, Debug)]
pub enum AnyStore<M> {
    /// In RAM.
    Ram(Ram<M>),
    /// An image.
    Image(Image<M>),
    /// An image that is copied when it is written.
    Overlay(Overlay<M>),
}

impl<M: Memory> AnyStore<M> {
    fn store(&self) -> &dyn Store<M> {
        match self {
            Self::Ram(store) => store,
            Self::Image(store) => store,
            Self::Overlay(store) => store,
        }
    }
}

impl<M: Memory> Store<M> for AnyStore<M> {
    fn bytes(&self) -> u64 {
        self.store().bytes()
    }

    fn is_read_only(&self) -> bool {
        self.store().is_read_only()
    }

    fn read(&self, at: u64, window: &M, to: u64, bytes: u64) -> Result<(), Outside> {
        self.store().read(at, window, to, bytes)
    }

    fn write(&self, at: u64, window: &M, from: u64, bytes: u64) -> Result<(), Outside> {
        self.store().write(at, window, from, bytes)
    }

    fn zero(&self, at: u64, bytes: u64) -> Result<(), Outside> {
        self.store().zero(at, bytes)
    }

    fn flush(&self) -> Result<(), Outside> {
        self.store().flush()
    }
}

fn check(at: u64, bytes: u64, length: u64) -> Result<(), Outside> {
    let end = at.checked_add(bytes).ok_or(Outside)?;
    if end > length {
        return Err(Outside);
    }
    Ok(())
}

/// Bytes of the map of a disk, up to a multiple of the block.
fn map_bytes(disk: u64) -> u64 {
    let blocks = disk.div_ceil(BLOCK);
    blocks.div_ceil(8 * BLOCK) * BLOCK
}

/// The word of the map with the bit of a block, and the bit.
fn place(block: u64) -> (u64, u64) {
    (block / 64 * 8, 1 << (block % 64))
}

/// What a range has of one block.
struct Part {
    block: u64,
    at: u64,
    bytes: u64,
}

impl Part {
    fn is_whole(&self) -> bool {
        self.bytes == BLOCK
    }
}

/// The parts of a range, which does not wrap, by blocks.
fn parts(at: u64, bytes: u64) -> impl Iterator<Item = Part> {
    let end = at + bytes;
    let mut next = at;
    core::iter::from_fn(move || {
        let at = next;
        let block = at / BLOCK;
        let bytes = (BLOCK - at % BLOCK).min(end - at);
        next += bytes;
        (bytes > 0).then_some(Part { block, at, bytes })
    })
}
