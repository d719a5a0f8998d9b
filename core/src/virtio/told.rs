//! How a backend is told which of its devices have something to do: two words in memory of its VM, which it and the service threads of its
//! devices change, without a lock (`docs/internals/locking.md`).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Attempts to change a word before the thread does something else: the backend's stores can make each of them fail.
const TRIES: usize = 16;

/// What came of telling a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The backend writes the words all the time: it is to be told again.
    Again,
    /// It is awake, or somebody else interrupts it: it will look.
    Looks,
    /// It sleeps, and is to be interrupted.
    Sleeps,
}

/// Tells the backend of devices, one bit for each, by its words `news` and `armed`.
#[inline(always)]
pub fn tell(news: &AtomicU64, armed: &AtomicU32, devices: u64) -> Told {
    if !set_bits(news, devices) {
        return Told::Again;
    }
    // The bits are there before the word is taken, and the backend sets the word before it looks at the bits a last time.
    fence(Ordering::SeqCst);
    match take(armed) {
        None => Told::Again,
        Some(0) => Told::Looks,
        Some(_) => Told::Sleeps,
    }
}

/// Sets bits. `false`: it could not be done.
#[inline(never)]
fn set_bits(word: &AtomicU64, bits: u64) -> bool {
    let mut found = word.load(Ordering::Relaxed);
    for _ in 0..TRIES {
        match word.compare_exchange_weak(found, found | bits, Ordering::Release, Ordering::Relaxed)
        {
            Ok(_) => return true,
            Err(other) => found = other,
        }
    }
    false
}

/// Takes a word: it is 0 afterwards. `None`: it could not be done.
#[inline(never)]
fn take(word: &AtomicU32) -> Option<u32> {
    let mut found = word.load(Ordering::Relaxed);
    for _ in 0..TRIES {
        match word.compare_exchange_weak(found, 0, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return Some(found),
            Err(other) => found = other,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_that_sleeps_is_interrupted_once() {
        let (news, armed) = (AtomicU64::new(0), AtomicU32::new(0));
        assert_eq!(tell(&news, &armed, 1 << 3), Told::Looks);
        assert_eq!(news.swap(0, Ordering::Acquire), 1 << 3);
        armed.store(1, Ordering::Relaxed);
        assert_eq!(tell(&news, &armed, 1 << 63), Told::Sleeps);
        assert_eq!(tell(&news, &armed, 1), Told::Looks);
        assert_eq!(news.load(Ordering::Relaxed), 1 << 63 | 1);
        // Whatever a backend has written there.
        armed.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(tell(&news, &armed, 1), Told::Sleeps);
        assert_eq!(armed.load(Ordering::Relaxed), 0);
    }
}
