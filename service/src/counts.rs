//! Where the counters of disks and ports are kept: memory that outlives the service VM, as that of
//! disks does, so that it goes on counting when it starts again.
//!
//! Each disk and each port has a place of its own, by its number. Zeros are counters of something
//! that has done nothing. A life that ends while it writes leaves words of before and of now side
//! by side, each of them whole.

use bulkhead_abi::plan::MAX_VIRTIO_DEVICES as MOST;

use crate::disk;
use crate::memory::{Memory, Outside};
use crate::switch;

/// Bytes of a place.
const PLACE: u64 = 128;
/// Bytes of memory for the counters of all disks and ports that there may be.
pub const BYTES: u64 = 2 * MOST as u64 * PLACE;

/// The counters in their memory.
#[derive(Debug)]
pub struct Counts<M>(M);

impl<M: Memory> Counts<M> {
    /// Counters in this memory, which has [`BYTES`]; of less, only as many as fit are kept.
    pub fn new(memory: M) -> Self {
        Self(memory)
    }

    /// What a port had done.
    pub(crate) fn port(&self, unit: usize) -> switch::Counters {
        let words = self.load(port(unit)).unwrap_or_default();
        switch::Counters::from_words(words)
    }

    /// What a disk had done.
    pub(crate) fn disk(&self, unit: usize) -> disk::Counters {
        let words = self.load(disk(unit)).unwrap_or_default();
        disk::Counters::from_words(words)
    }

    /// Keeps what has come and gone, and if `dropped` what went nowhere, which is rare.
    pub(crate) fn keep_port(&self, unit: usize, counters: &switch::Counters, dropped: bool) {
        if dropped {
            self.store(port(unit), &counters.words());
        } else {
            let (from, to) = (counters.from_guest, counters.to_guest);
            let words = [from.frames, from.bytes, to.frames, to.bytes];
            self.store(port(unit), &words);
        }
    }

    pub(crate) fn keep_disk(&self, unit: usize, counters: &disk::Counters) {
        self.store(disk(unit), &counters.words());
    }

    fn load<const N: usize>(&self, at: u64) -> Result<[u64; N], Outside> {
        let mut words = [0; N];
        for (index, word) in (0..).zip(&mut words) {
            *word = self.0.load64(at + index * 8)?;
        }
        Ok(words)
    }

    fn store(&self, at: u64, words: &[u64]) {
        for (index, word) in (0..).zip(words) {
            // Without a place they are counted, and not kept.
            let _ = self.0.store64(at + index * 8, *word);
        }
    }
}

fn port(unit: usize) -> u64 {
    unit as u64 * PLACE
}

fn disk(unit: usize) -> u64 {
    (MOST + unit) as u64 * PLACE
}
