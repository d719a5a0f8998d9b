//! A byte ring with one producer and one consumer on different pCPUs, without a lock.
//!
//! Only the producer moves `head`, only the consumer moves `tail`; each writes its index with
//! release and reads that of the other side with acquire (`docs/internals/locking.md`).

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// A ring of `N` bytes; `N` is a power of two.
#[derive(Debug)]
#[repr(C)]
pub struct Ring<const N: usize> {
    head: AtomicU32,
    tail: AtomicU32,
    bytes: [AtomicU8; N],
}

impl<const N: usize> Default for Ring<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Ring<N> {
    const MASK: u32 = {
        assert!(
            N.is_power_of_two() && N <= 1 << 16,
            "the size of a ring is a power of two"
        );
        N as u32 - 1
    };

    /// An empty ring.
    pub const fn new() -> Self {
        Self {
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            bytes: [const { AtomicU8::new(0) }; N],
        }
    }

    /// Number of bytes in the ring.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.head
            .load(Ordering::Acquire)
            .wrapping_sub(self.tail.load(Ordering::Acquire))
    }

    /// Producer: how many bytes it has appended, modulo 2^32.
    #[inline(always)]
    pub fn appended(&self) -> u32 {
        self.head.load(Ordering::Relaxed)
    }

    /// Whether the ring is empty.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of bytes that fit.
    #[inline(always)]
    pub fn free(&self) -> u32 {
        (N as u32).saturating_sub(self.len())
    }

    /// Producer: appends a byte; `false` if there is no room.
    #[inline(always)]
    pub fn push(&self, byte: u8) -> bool {
        self.push_below(byte, N as u32)
    }

    /// Producer: appends a byte to fewer than `most`, which are no more than fit; `false` if there are as many.
    #[inline(always)]
    pub fn push_below(&self, byte: u8, most: u32) -> bool {
        let head = self.head.load(Ordering::Relaxed);
        if head.wrapping_sub(self.tail.load(Ordering::Acquire)) >= most {
            return false;
        }
        if let Some(place) = self.bytes.get((head & Self::MASK) as usize) {
            place.store(byte, Ordering::Relaxed);
        }
        self.head.store(head.wrapping_add(1), Ordering::Release);
        true
    }

    /// Producer: appends all bytes or none. The consumer sees all of them at once, or none yet.
    pub fn push_all(&self, bytes: &[u8]) -> bool {
        let head = self.head.load(Ordering::Relaxed);
        let used = head.wrapping_sub(self.tail.load(Ordering::Acquire));
        if bytes.len() > (N as u32).saturating_sub(used) as usize {
            return false;
        }
        let mut end = head;
        for byte in bytes {
            if let Some(place) = self.bytes.get((end & Self::MASK) as usize) {
                place.store(*byte, Ordering::Relaxed);
            }
            end = end.wrapping_add(1);
        }
        self.head.store(end, Ordering::Release);
        true
    }

    /// Consumer: takes the oldest byte.
    #[inline(always)]
    pub fn pop(&self) -> Option<u8> {
        let tail = self.tail.load(Ordering::Relaxed);
        if self.head.load(Ordering::Acquire) == tail {
            return None;
        }
        let byte = self
            .bytes
            .get((tail & Self::MASK) as usize)?
            .load(Ordering::Relaxed);
        self.tail.store(tail.wrapping_add(1), Ordering::Release);
        Some(byte)
    }

    /// Consumer: the oldest bytes, as far as they lie behind one another in memory.
    #[inline(always)]
    pub fn readable(&self) -> &[AtomicU8] {
        let first = (self.tail.load(Ordering::Relaxed) & Self::MASK) as usize;
        let end = first.saturating_add(self.len() as usize).min(N);
        self.bytes.get(first..end).unwrap_or(&[])
    }

    /// Consumer: drops `count` bytes of those that are [readable](Self::readable).
    #[inline(always)]
    pub fn drop_front(&self, count: u32) {
        let tail = self.tail.load(Ordering::Relaxed);
        self.tail.store(tail.wrapping_add(count), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::Arc, thread, vec::Vec};

    #[test]
    fn several_bytes_go_in_together_or_not_at_all() {
        let ring = Ring::<8>::new();
        assert!(ring.push_all(b"abcde"));
        assert!(!ring.push_all(b"wxyz"));
        assert_eq!(ring.len(), 5);
        assert_eq!((ring.pop(), ring.pop()), (Some(b'a'), Some(b'b')));
        assert!(ring.push_all(b"fghij"), "over the end of the array");
        let rest: Vec<u8> = std::iter::from_fn(|| ring.pop()).collect();
        assert_eq!(rest, b"cdefghij");
        assert!(ring.push_all(b""));
    }

    #[test]
    fn it_fills_and_empties_in_order() {
        let ring = Ring::<8>::new();
        for round in 0..5u8 {
            for n in 0..8 {
                assert!(ring.push(round * 8 + n));
            }
            assert!(!ring.push(99), "a full ring takes nothing");
            assert_eq!((ring.len(), ring.free()), (8, 0));
            for n in 0..8 {
                assert_eq!(ring.pop(), Some(round * 8 + n));
            }
            assert_eq!(ring.pop(), None);
        }
    }

    #[test]
    fn two_threads_lose_and_double_nothing() {
        let ring = Arc::new(Ring::<16>::new());
        let producer = Arc::clone(&ring);
        let thread = thread::spawn(move || {
            for n in 0..20_000u32 {
                while !producer.push(n as u8) {
                    thread::yield_now();
                }
            }
        });
        let mut got = Vec::new();
        while got.len() < 20_000 {
            match ring.pop() {
                Some(byte) => got.push(byte),
                None => thread::yield_now(),
            }
        }
        thread.join().unwrap();
        assert!(got.iter().enumerate().all(|(n, byte)| *byte == n as u8));
    }
}
