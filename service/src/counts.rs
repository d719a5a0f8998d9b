//! Where the counters of disks and ports are kept: memory that outlives the service VM, as that of
//! disks does, so that it goes on counting when it starts again.
//!
//! Each disk and each port has a place of its own, by its number. Zeros are counters of something
//! that has done nothing. A life that ends while it writes leaves words of before and of now side
//! by side, each of them whole.
//!
//! Most of what is done changes two of the words, and only what has changed is written ([`Tally`]).

use bulkhead_abi::plan::MAX_VIRTIO_DEVICES as MOST;

use crate::bits::bits;
use crate::memory::{Memory, Outside};

/// Bytes of a place.
const PLACE: u64 = 128;
/// Bytes of memory for the counters of all disks and ports that there may be.
pub const BYTES: u64 = 2 * MOST as u64 * PLACE;

/// Counters of one disk or port, and which of them have changed since they were kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally<const N: usize> {
    words: [u64; N],
    changed: u64,
}

impl<const N: usize> Tally<N> {
    /// Counters with these values, which are kept.
    pub(crate) const fn new(words: [u64; N]) -> Self {
        Self { words, changed: 0 }
    }

    pub(crate) const fn words(&self) -> [u64; N] {
        self.words
    }

    pub(crate) fn add(&mut self, counter: usize, more: u64) {
        if let Some(word) = self.words.get_mut(counter) {
            *word = word.wrapping_add(more);
            self.changed |= 1 << counter;
        }
    }
}

/// The counters in their memory.
#[derive(Debug)]
pub struct Counts<M>(M);

impl<M: Memory> Counts<M> {
    /// Counters in this memory, which has [`BYTES`]; of less, only as many as fit are kept.
    pub fn new(memory: M) -> Self {
        Self(memory)
    }

    /// What a port had done.
    pub(crate) fn port<const N: usize>(&self, unit: usize) -> Tally<N> {
        self.load(port(unit))
    }

    /// What a disk had done.
    pub(crate) fn disk<const N: usize>(&self, unit: usize) -> Tally<N> {
        self.load(disk(unit))
    }

    /// Keeps what a port has done. Returns whether that is anything new.
    pub(crate) fn keep_port<const N: usize>(&self, unit: usize, tally: &mut Tally<N>) -> bool {
        self.keep(port(unit), tally)
    }

    /// Keeps what a disk has done. Returns whether that is anything new.
    pub(crate) fn keep_disk<const N: usize>(&self, unit: usize, tally: &mut Tally<N>) -> bool {
        self.keep(disk(unit), tally)
    }

    fn load<const N: usize>(&self, at: u64) -> Tally<N> {
        let load = || {
            let mut words = [0; N];
            for (index, word) in (0..).zip(&mut words) {
                *word = self.0.load64(at + index * 8)?;
            }
            Ok::<_, Outside>(words)
        };
        Tally::new(load().unwrap_or([0; N]))
    }

    fn keep<const N: usize>(&self, at: u64, tally: &mut Tally<N>) -> bool {
        let changed = core::mem::take(&mut tally.changed);
        for index in bits(changed) {
            if let Some(word) = tally.words.get(index) {
                // Without a place they are counted, and not kept.
                let _ = self.0.store64(at + index as u64 * 8, *word);
            }
        }
        changed != 0
    }
}

fn port(unit: usize) -> u64 {
    unit as u64 * PLACE
}

fn disk(unit: usize) -> u64 {
    (MOST + unit) as u64 * PLACE
}
