//! The last crash of a VM, kept for managers until it crashes again: in the words that messages have.

use core::sync::atomic::{AtomicU64, Ordering, fence};

use bulkhead_abi::control::VALUES;
use bulkhead_abi::control::crash::{DATA, EXIT, EXITS, HEAD, SERROR, UNDEFINED, VECTOR, WORDS};

use crate::console::report::Reason;
use crate::console::stats::{ExitStats, LAST_EXITS, LastExit};
use crate::cpu::inject::Fault;

const _: () = assert!(EXITS == LAST_EXITS && EXIT * 8 == size_of::<LastExit>());

/// One vCPU at a time writes it, that has crashed the VM: one in each life, before the life ends. Whoever serves a manager reads it. All zeros: the
/// VM has not crashed.
#[derive(Debug)]
#[repr(C)]
pub struct LastCrash {
    /// Twice the number of crashes, and one more while another one is being written.
    version: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// Whether words were told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// They were.
    All,
    /// There are none: the VM has not crashed.
    Nothing,
    /// They are being written, and are to be read again.
    NotYet,
}

impl Default for LastCrash {
    fn default() -> Self {
        Self::new()
    }
}

impl LastCrash {
    /// Of a VM that has not crashed.
    pub const fn new() -> Self {
        Self {
            version: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    /// Keeps a crash of this life, by this vCPU with these statistics, when the counter reads `now`. Takes some 300 instructions.
    #[inline(never)]
    pub fn keep(&self, life: u32, vcpu: usize, reason: &Reason, stats: &ExitStats, now: u64) {
        let Reason::Fault {
            syndrome,
            address,
            pc,
            fault,
        } = *reason
        else {
            return;
        };
        let fault = match fault {
            None => SERROR,
            Some(Fault::Undefined | Fault::Trapped) => UNDEFINED,
            Some(Fault::Data(_)) => DATA,
            Some(Fault::Fetch(_)) => VECTOR,
        };
        let version = self.version.load(Ordering::Relaxed) | 1;
        self.version.store(version, Ordering::Relaxed);
        fence(Ordering::Release);
        let (ring, exits) = stats.ring();
        let head: [u64; HEAD] = [
            life.into(),
            vcpu as u64,
            syndrome,
            address,
            pc,
            fault,
            now,
            exits,
        ];
        for (place, word) in self.words.iter().zip(head.iter().chain(ring)) {
            place.store(*word, Ordering::Relaxed);
        }
        self.version
            .store(version.wrapping_add(1), Ordering::Release);
    }

    /// Tells the words from `first` on; 0 behind the last. If there are none, `values` stay as they are.
    #[inline(never)]
    pub fn tell(&self, first: usize, values: &mut [u64; VALUES]) -> Told {
        let version = self.version.load(Ordering::Acquire);
        if version == 0 {
            return Told::Nothing;
        }
        for (value, word) in values.iter_mut().zip(self.words.iter().skip(first)) {
            *value = word.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
        if version & 1 != 0 || version != self.version.load(Ordering::Relaxed) {
            return Told::NotYet;
        }
        Told::All
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_abi::exit::ExitClass;

    use super::*;

    fn fault(fault: Option<Fault>) -> Reason {
        Reason::Fault {
            syndrome: 2,
            address: 3,
            pc: 4,
            fault,
        }
    }

    #[test]
    fn the_last_crash_is_kept_with_its_last_exits() {
        let kept = LastCrash::new();
        assert_eq!(kept.tell(0, &mut [0; VALUES]), Told::Nothing);
        let mut stats = ExitStats::new(0);
        for n in 0..17 {
            stats.count(ExitClass::Hvc, 0, 70 + n, 0x100 + n, 0x200 + n);
        }
        kept.keep(1, 6, &fault(None), &stats, 8);
        let from = |n| {
            let mut values = [0; VALUES];
            assert_eq!(kept.tell(n, &mut values), Told::All);
            values
        };
        assert_eq!(from(0)[..HEAD], [1, 6, 2, 3, 4, SERROR, 8, 17]);
        let class = ExitClass::Hvc as u64;
        // The last is where the first was.
        let exits = [[0x110, 0x210, 86, class], [0x101, 0x201, 71, class]];
        assert_eq!(from(HEAD)[..2 * EXIT], exits.concat());
        let behind = from(WORDS - EXIT);
        assert_eq!(behind[..EXIT], [0x10f, 0x20f, 85, class]);
        assert_eq!(behind[EXIT..], [0; VALUES - EXIT]);
        assert_eq!(from(WORDS), [0; VALUES]);
        for (reason, told) in [
            (Fault::Undefined, UNDEFINED),
            (Fault::Data(0), DATA),
            (Fault::Fetch(0), VECTOR),
        ] {
            kept.keep(2, 0, &fault(Some(reason)), &stats, 9);
            assert_eq!((from(0)[0], from(0)[5]), (2, told));
        }
        kept.version.fetch_or(1, Ordering::Relaxed);
        assert_eq!(kept.tell(0, &mut [0; VALUES]), Told::NotYet);
    }
}
