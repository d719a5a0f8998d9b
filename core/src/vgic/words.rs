//! A bit for each of the 288 INTIDs that a vCPU can see, as nine words: [`Words`] of one pCPU, and
//! [`SharedWords`].

use core::sync::atomic::{
    AtomicU32,
    Ordering::{self, Acquire, Relaxed},
};

use super::{WORDS, mask};

/// Words that only one pCPU accesses. Reads beyond the last word give 0; writes there are ignored.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Words {
    /// A bit for each word that is not zero, so that the other words need not be read.
    some: u32,
    words: [u32; WORDS],
}

impl Words {
    pub(super) const fn new() -> Self {
        Self {
            some: 0,
            words: [0; WORDS],
        }
    }

    #[inline(always)]
    pub(super) fn get(&self, word: usize) -> u32 {
        self.words.get(word).copied().unwrap_or(0)
    }

    #[inline(always)]
    pub(super) fn set(&mut self, word: usize, bits: u32) {
        if let Some(place) = self.words.get_mut(word) {
            *place = bits;
            let summary = mask(word);
            if bits != 0 {
                self.some |= summary;
            } else {
                self.some &= !summary;
            }
        }
    }

    #[inline(always)]
    pub(super) fn add(&mut self, word: usize, bits: u32) {
        self.set(word, self.get(word) | bits);
    }

    #[inline(always)]
    pub(super) fn remove(&mut self, word: usize, bits: u32) {
        self.set(word, self.get(word) & !bits);
    }

    /// Returns a bit for each word that is not zero.
    #[inline(always)]
    pub(super) const fn some(&self) -> u32 {
        self.some
    }

    #[inline(always)]
    pub(super) const fn is_empty(&self) -> bool {
        self.some == 0
    }
}

/// Words that several pCPUs read and change.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct SharedWords([AtomicU32; WORDS]);

impl SharedWords {
    pub(super) const fn new() -> Self {
        Self([const { AtomicU32::new(0) }; WORDS])
    }

    #[inline(always)]
    pub(super) fn get(&self, word: usize) -> u32 {
        self.0.get(word).map_or(0, |place| place.load(Acquire))
    }

    /// Writes a word. To be called only by the one pCPU that writes this word.
    #[inline(always)]
    pub(super) fn set(&self, word: usize, bits: u32) {
        if let Some(place) = self.0.get(word) {
            place.store(bits, Ordering::Release);
        }
    }

    /// Sets bits, and returns the word as it was before.
    pub(super) fn add(&self, word: usize, bits: u32) -> u32 {
        self.0
            .get(word)
            .map_or(0, |place| place.fetch_or(bits, Ordering::SeqCst))
    }

    /// Clears bits, and returns the word as it was before.
    pub(super) fn remove(&self, word: usize, bits: u32) -> u32 {
        self.0
            .get(word)
            .map_or(0, |place| place.fetch_and(!bits, Ordering::SeqCst))
    }

    /// Clears a bit, and returns whether it was set. Makes no exclusive access if it is clear.
    pub(super) fn take_bit(&self, word: usize, bit: u32) -> bool {
        self.get(word) & bit != 0 && self.remove(word, bit) & bit != 0
    }

    /// Clears a word, and returns it as it was before. Makes no exclusive access if it is zero.
    pub(super) fn take(&self, word: usize) -> u32 {
        match self.0.get(word) {
            Some(place) if place.load(Relaxed) != 0 => place.swap(0, Ordering::SeqCst),
            _ => 0,
        }
    }

    /// Returns a word itself; for an index beyond the last word, the first one.
    #[inline(always)]
    pub(super) fn at(&self, word: usize) -> &AtomicU32 {
        self.0.get(word).unwrap_or(&self.0[0])
    }

    pub(super) fn fill(&self, bits: u32) {
        for place in &self.0 {
            place.store(bits, Relaxed);
        }
    }
}
