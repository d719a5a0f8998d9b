//! What a VM has printed last, for those who read it besides the UART: one pCPU writes, which never waits, and any number of readers find out
//! by themselves what they have missed (`docs/internals/locking.md`).

use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Bytes in a word.
const WORD: u64 = size_of::<u64>() as u64;
/// Attempts of a reader while the writer overtakes it.
const TRIES: usize = 2;

/// The last bytes, in `N` words; `N` is a power of two. All zeros is the value of one that is empty, and is not kept.
#[derive(Debug)]
#[repr(C)]
pub struct Backlog<const N: usize> {
    /// Number of the next byte, from 1 on; 0: nothing is kept.
    head: AtomicU64,
    /// The writer overwrites bytes from `head` on up to this one.
    announced: AtomicU64,
    words: [AtomicU64; N],
}

impl<const N: usize> Default for Backlog<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// What a reader has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Number of the first byte.
    pub first: u64,
    /// Bytes.
    pub bytes: u32,
    /// Number of the byte behind the newest.
    pub next: u64,
}

impl<const N: usize> Backlog<N> {
    /// Bytes that a reader finds at most.
    const KEPT: u64 = {
        assert!(N.is_power_of_two() && N >= 4, "the size is a power of two");
        N as u64 * WORD
    };
    /// Bytes that the writer announces at once, before it overwrites what was there: whole words.
    const AHEAD: u64 = if N < 32 { WORD } else { Self::KEPT / 32 };

    /// An empty one that keeps nothing.
    pub const fn new() -> Self {
        Self {
            head: AtomicU64::new(0),
            announced: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; N],
        }
    }

    /// Has it kept from now on what is written. Called before anybody writes or reads.
    pub fn keep(&self) {
        self.head.store(1, Ordering::Relaxed);
    }

    fn word(&self, number: u64) -> &AtomicU64 {
        &self.words[(number / WORD) as usize % N]
    }

    /// Writer: appends bytes, if they are to be kept.
    #[inline(always)]
    pub fn append(&self, bytes: impl ExactSizeIterator<Item = u8>) {
        let head = self.head.load(Ordering::Relaxed);
        if head != 0 {
            self.put(head, bytes);
        }
    }

    #[inline(never)]
    fn put(&self, mut head: u64, bytes: impl ExactSizeIterator<Item = u8>) {
        let end = head.wrapping_add(bytes.len() as u64);
        if end > self.announced.load(Ordering::Relaxed) {
            // The next multiple of it, a power of two.
            let ahead = end.wrapping_add(Self::AHEAD - 1) & !(Self::AHEAD - 1);
            self.announced.store(ahead, Ordering::Relaxed);
            // Who reads a byte that is written from here on finds that it was announced.
            fence(Ordering::Release);
        }
        for byte in bytes {
            let (word, shift) = (self.word(head), head % WORD * 8);
            let others = word.load(Ordering::Relaxed) & !(0xffu64.wrapping_shl(shift as u32));
            let byte = u64::from(byte).wrapping_shl(shift as u32);
            word.store(others | byte, Ordering::Relaxed);
            head = head.wrapping_add(1);
        }
        self.head.store(head, Ordering::Release);
    }

    /// Reader: bytes from number `from` on, or the oldest ones behind it that are still there, at most `most`, into `to`.
    pub fn read(&self, from: u64, most: u32, to: &mut [u64]) -> Found {
        let mut found = Found::default();
        for _ in 0..TRIES {
            let head = self.head.load(Ordering::Acquire);
            let announced = self.announced.load(Ordering::Relaxed);
            // Those that are about to be overwritten are not begun with.
            let oldest = announced
                .saturating_add(Self::AHEAD)
                .saturating_sub(Self::KEPT);
            let first = from.saturating_add(1).max(oldest.max(1)).min(head.max(1));
            let room = (to.len() as u64).saturating_mul(WORD);
            let bytes = head.saturating_sub(first).min(room).min(most.into());
            let words = bytes.div_ceil(WORD) as usize;
            let shift = (first % WORD * 8) as u32;
            let mut number = first;
            let load = |number| self.word(number).load(Ordering::Relaxed);
            let mut low = load(number);
            for place in to.iter_mut().take(words) {
                number = number.wrapping_add(WORD);
                let high = load(number);
                // By two shifts: one of 64 is none.
                *place = low.wrapping_shr(shift) | high.wrapping_shl(1).wrapping_shl(63 - shift);
                low = high;
            }
            // If one of them was written meanwhile, its announcement is seen here.
            fence(Ordering::Acquire);
            let announced = self.announced.load(Ordering::Relaxed);
            found = Found {
                first: first.wrapping_sub(1),
                bytes: bytes as u32,
                next: head.saturating_sub(1),
            };
            if first.saturating_add(Self::KEPT) >= announced {
                return found;
            }
            found.bytes = 0;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::Arc, thread, vec::Vec};

    /// What a reader gets from number `from` on.
    fn read<const N: usize>(log: &Backlog<N>, from: u64, most: u32) -> (u64, Vec<u8>, u64) {
        let mut words = [0; 63];
        let found = log.read(from, most, &mut words);
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        let bytes = bytes.take(found.bytes as usize);
        (found.first, bytes.collect(), found.next)
    }

    fn write<const N: usize>(log: &Backlog<N>, text: &[u8]) {
        log.append(text.iter().copied());
    }

    #[test]
    fn what_is_not_to_be_kept_is_not() {
        let log = Backlog::<32>::new();
        write(&log, b"hello");
        assert_eq!(read(&log, 0, 100), (0, Vec::new(), 0));
    }

    #[test]
    fn a_reader_goes_on_where_it_was() {
        let log = Backlog::<32>::new();
        log.keep();
        write(&log, b"hello");
        assert_eq!(read(&log, 0, 100), (0, b"hello".to_vec(), 5));
        assert_eq!(read(&log, 2, 2), (2, b"ll".to_vec(), 5));
        assert_eq!(read(&log, 5, 100), (5, Vec::new(), 5));
        assert_eq!(read(&log, 99, 100), (5, Vec::new(), 5), "not there yet");
        write(&log, b"");
        write(&log, b", world");
        assert_eq!(read(&log, 5, 100), (5, b", world".to_vec(), 12));
    }

    #[test]
    fn what_was_overwritten_is_missed_and_nothing_else() {
        let log = Backlog::<32>::new();
        log.keep();
        let all: Vec<u8> = (0..1000u32).map(|n| (n % 251) as u8).collect();
        for piece in all.chunks(7) {
            write(&log, piece);
        }
        let (first, bytes, next) = read(&log, 0, 504);
        assert_eq!(next, 1000);
        assert_eq!(first + bytes.len() as u64, 1000);
        assert!(bytes.len() >= 256 - 2 * 8, "{}", bytes.len());
        assert_eq!(bytes, &all[first as usize..]);
        for from in first..=1000 {
            for most in [0, 1, 9, 200] {
                let (begin, bytes, _) = read(&log, from, most);
                let from = from as usize;
                let end = (from + most as usize).min(1000);
                assert_eq!((begin, &bytes[..]), (from as u64, &all[from..end]));
            }
        }
    }

    #[test]
    fn a_reader_that_is_overtaken_gets_no_byte_of_another_place() {
        const ALL: u64 = 200_000;
        let log = Arc::new(Backlog::<32>::new());
        log.keep();
        let writer = Arc::clone(&log);
        let thread = thread::spawn(move || {
            for number in 0..ALL {
                writer.append(std::iter::once((number % 251) as u8));
            }
        });
        let mut next = 0;
        while next < ALL {
            let (first, bytes, newest) = read(&log, next, 100);
            assert!(first >= next || first == newest, "{first} after {next}");
            for (number, byte) in (first..).zip(&bytes) {
                assert_eq!(u64::from(*byte), number % 251, "byte {number}");
            }
            next = first + bytes.len() as u64;
        }
        thread.join().expect("a writer");
    }
}
