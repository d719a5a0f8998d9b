//! Bytes that a manager types on the console of a VM, on their way from the service thread to the pCPU that drains the console, which alone
//! gives VMs input (`docs/internals/locking.md`).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Words that have the bytes.
const WORDS: usize = 3;
/// The bytes wait; with their number.
const POSTED: u32 = 1 << 31;
/// They have been given; with the number of those that were taken.
const GIVEN: u32 = 1 << 30;
/// The number.
const NUMBER: u32 = 0xff;

/// The bytes of a manager. All zeros is the value of one that types nothing.
#[derive(Debug)]
pub struct Typed {
    state: AtomicU32,
    vm: AtomicU32,
    words: [AtomicU64; WORDS],
}

impl Default for Typed {
    fn default() -> Self {
        Self::new()
    }
}

impl Typed {
    /// Nothing is typed.
    pub const fn new() -> Self {
        Self {
            state: AtomicU32::new(0),
            vm: AtomicU32::new(0),
            words: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    /// Service thread: has so many bytes given to a VM; the first is in the lowest bits of the first word. `false`: the ones before still wait. Who
    /// drains the console must then be told.
    pub fn post(&self, vm: usize, bytes: u32, words: [u64; WORDS]) -> bool {
        if self.state.load(Ordering::Acquire) & POSTED != 0 {
            return false;
        }
        self.vm.store(vm as u32, Ordering::Relaxed);
        for (place, word) in self.words.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        self.state.store(POSTED | bytes & NUMBER, Ordering::Release);
        true
    }

    /// Who drains the console: gives the bytes that wait to `push`, in order, until it has no room. Returns the VM. The manager must then be looked after.
    pub fn give(&self, mut push: impl FnMut(usize, u8) -> bool) -> Option<usize> {
        let state = self.state.load(Ordering::Acquire);
        if state & POSTED == 0 {
            return None;
        }
        let vm = self.vm.load(Ordering::Relaxed) as usize;
        let bytes =
            { self.words.iter() }.flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        let bytes = bytes.take((state & NUMBER) as usize);
        let taken = bytes.take_while(|byte| push(vm, *byte)).count() as u32;
        self.state.store(GIVEN | taken, Ordering::Release);
        Some(vm)
    }

    /// Service thread: how many bytes were taken, once they have been given.
    pub fn taken(&self) -> Option<u32> {
        let state = self.state.load(Ordering::Acquire);
        (state & GIVEN != 0).then_some(state & NUMBER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn bytes_are_given_once_in_order_as_far_as_there_is_room() {
        let typed = Typed::new();
        assert_eq!((typed.give(|_, _| true), typed.taken()), (None, None));
        let words = [
            u64::from_le_bytes(*b"abcdefgh"),
            u64::from_le_bytes(*b"ij\0\0\0\0\0\0"),
            0,
        ];
        assert!(typed.post(5, 10, words));
        assert!(!typed.post(6, 1, [0; 3]), "they wait");
        assert_eq!(typed.taken(), None);
        let mut got = Vec::new();
        let given = typed.give(|vm, byte| {
            let fits = got.len() < 9;
            if fits {
                got.push((vm, byte));
            }
            fits
        });
        assert_eq!(given, Some(5));
        assert_eq!(got, b"abcdefghi".map(|byte| (5, byte)));
        assert_eq!(typed.taken(), Some(9));
        assert_eq!(typed.give(|_, _| true), None, "once");
        assert!(typed.post(6, 1, [u64::from(b'x'), 0, 0]));
        assert_eq!(typed.taken(), None);
        assert_eq!(typed.give(|vm, byte| (vm, byte) == (6, b'x')), Some(6));
        assert_eq!(typed.taken(), Some(1));
    }
}
