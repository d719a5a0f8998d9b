//! A device of a VM that several pCPUs may reach for: its state in a few atomic words, for one of them at
//! a time. Who finds another one there does not wait: its guest repeats the access, or its pCPU looks
//! again a little later (`docs/locking.md`).

use core::sync::atomic::{AtomicU64, Ordering};

/// State that fits `N` words.
pub trait Words<const N: usize>: Sized {
    /// The state as words.
    fn to_words(&self) -> [u64; N];
    /// The state that [`Self::to_words`] made words of.
    fn from_words(words: [u64; N]) -> Self;
}

/// The words, and whether somebody is there. Zeros are a state that nobody has set yet.
#[derive(Debug)]
#[repr(C)]
pub struct Shared<const N: usize> {
    taken: AtomicU64,
    words: [AtomicU64; N],
}

impl<const N: usize> Default for Shared<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Shared<N> {
    /// All words 0, nobody there.
    pub const fn new() -> Self {
        Self {
            taken: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; N],
        }
    }

    /// Sets the state, while nobody else can be there: before the VM runs.
    pub fn set(&self, state: &impl Words<N>) {
        for (slot, word) in self.words.iter().zip(state.to_words()) {
            slot.store(word, Ordering::Relaxed);
        }
        self.taken.store(0, Ordering::Release);
    }

    /// Changes the state, or looks at it. `None` if another pCPU is at it just now.
    pub fn with<T: Words<N>, R>(&self, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        if self.taken.swap(1, Ordering::Acquire) != 0 {
            return None;
        }
        let mut words = [0; N];
        for (word, slot) in words.iter_mut().zip(&self.words) {
            *word = slot.load(Ordering::Relaxed);
        }
        let mut state = T::from_words(words);
        let result = change(&mut state);
        for (slot, word) in self.words.iter().zip(state.to_words()) {
            slot.store(word, Ordering::Relaxed);
        }
        self.taken.store(0, Ordering::Release);
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::Arc, thread};

    /// Two words that are always equal when nobody is at them.
    #[derive(Debug, PartialEq)]
    struct Twins(u64, u64);

    impl Words<2> for Twins {
        fn to_words(&self) -> [u64; 2] {
            [self.0, self.1]
        }
        fn from_words([first, second]: [u64; 2]) -> Self {
            Self(first, second)
        }
    }

    #[test]
    fn who_comes_second_does_not_get_in() {
        let shared = Shared::new();
        shared.set(&Twins(7, 7));
        let inner = shared.with(|twins: &mut Twins| {
            twins.0 = 8;
            shared.with(|_: &mut Twins| ())
        });
        assert_eq!(inner, Some(None));
        assert_eq!(shared.with(|twins: &mut Twins| twins.0), Some(8));
    }

    #[test]
    fn changes_are_whole() {
        let shared = Arc::new(Shared::new());
        let threads: std::vec::Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let mut done = 0;
                    while done < 10_000 {
                        let equal = shared.with(|twins: &mut Twins| {
                            let equal = twins.0 == twins.1;
                            twins.0 += 1;
                            twins.1 += 1;
                            equal
                        });
                        match equal {
                            Some(equal) => {
                                assert!(equal);
                                done += 1;
                            }
                            None => thread::yield_now(),
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(
            shared.with(|twins: &mut Twins| (twins.0, twins.1)),
            Some((20_000, 20_000))
        );
    }
}
