//! Until when VMs that were asked to stop have time for it, and when they are told again. Who gives orders writes here, one at a time; who waits for
//! the next moment reads it.

use core::sync::atomic::{AtomicU64, Ordering};

use bulkhead_abi::plan::MAX_VMS;

/// What is to be done about a VM that was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// It is to be told again: one that begins may not have heard it.
    Again,
    /// Its time is over.
    Over,
}

/// The moments (physical counter) of a VM; 0 for none.
#[derive(Debug)]
struct Moments {
    until: AtomicU64,
    again: AtomicU64,
}

impl Moments {
    fn set(&self, until: u64, again: u64) {
        self.until.store(until, Ordering::Relaxed);
        self.again.store(again, Ordering::Relaxed);
    }

    /// The end of its time, and the next moment.
    fn get(&self) -> (u64, u64) {
        let (until, again) = (
            self.until.load(Ordering::Relaxed),
            self.again.load(Ordering::Relaxed),
        );
        (until, if again == 0 { until } else { again.min(until) })
    }
}

/// The VMs that were asked. All zeros: none was.
#[derive(Debug)]
pub struct Asked {
    vms: [Moments; MAX_VMS],
    /// A bit for each VM that was asked, so that a look takes no time for the others.
    some: AtomicU64,
    /// The first moment of all; 0 for none.
    next: AtomicU64,
}

const _: () = assert!(MAX_VMS <= u64::BITS as usize);

impl Default for Asked {
    fn default() -> Self {
        Self::new()
    }
}

impl Asked {
    /// Nobody was asked.
    pub const fn new() -> Self {
        Self {
            vms: [const {
                Moments {
                    until: AtomicU64::new(0),
                    again: AtomicU64::new(0),
                }
            }; MAX_VMS],
            some: AtomicU64::new(0),
            next: AtomicU64::new(0),
        }
    }

    /// A VM has time until then, and is told again at the other moment; 0 for none.
    pub fn set(&self, vm: usize, until: u64, again: u64) {
        if let Some(place) = self.vms.get(vm) {
            // 0 stands for none.
            place.set(until.max(1), again);
            let some = self.some.load(Ordering::Relaxed);
            self.some.store(some | bit(vm), Ordering::Relaxed);
            self.look(None);
        }
    }

    /// A VM was asked, and has ended.
    pub fn forget(&self, vm: usize) {
        if let Some(place) = self.vms.get(vm) {
            self.clear(vm, place);
            self.look(None);
        }
    }

    /// Until when a VM has time that was asked last; 0 for none.
    pub fn until(&self, vm: usize) -> u64 {
        self.vms.get(vm).map_or(0, |place| place.get().0)
    }

    /// When there is something to do without being told.
    pub fn next(&self) -> Option<u64> {
        Some(self.next.load(Ordering::Relaxed)).filter(|next| *next != 0)
    }

    /// Takes what is due about a VM. It may have ended long ago. One that is told again now is so `every` so many ticks.
    pub fn take(&self, now: u64, every: u64) -> Option<(usize, Due)> {
        self.look(Some((now, every)))
    }

    fn clear(&self, vm: usize, place: &Moments) {
        place.set(0, 0);
        let some = self.some.load(Ordering::Relaxed);
        self.some.store(some & !bit(vm), Ordering::Relaxed);
    }

    /// Goes through the VMs that were asked, takes the first that is `due` at a time and is told again in so many ticks, and finds the next moment. One
    /// loop for both: a service thread may do this between two looks at interrupts, for all VMs of the board.
    #[inline(never)]
    fn look(&self, due: Option<(u64, u64)>) -> Option<(usize, Due)> {
        let (mut taken, mut first) = (None, u64::MAX);
        let mut rest = self.some.load(Ordering::Relaxed);
        while rest != 0 {
            let vm = rest.trailing_zeros() as usize;
            rest &= rest.wrapping_sub(1);
            let Some(place) = self.vms.get(vm) else {
                continue;
            };
            let (until, mut next) = place.get();
            if let Some((now, every)) = due
                && taken.is_none()
                && next <= now
            {
                if until <= now {
                    self.clear(vm, place);
                    taken = Some((vm, Due::Over));
                    continue;
                }
                place.set(until, now.saturating_add(every));
                next = place.get().1;
                taken = Some((vm, Due::Again));
            }
            first = first.min(next);
        }
        let next = if first == u64::MAX { 0 } else { first };
        self.next.store(next, Ordering::Relaxed);
        taken
    }
}

/// The bit of a VM.
const fn bit(vm: usize) -> u64 {
    1u64.wrapping_shl(vm as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_comes_first_and_each_once() {
        let asked = Asked::new();
        assert_eq!((asked.next(), asked.take(u64::MAX, 1)), (None, None));
        asked.set(7, 500, 0);
        asked.set(3, 900, 0);
        assert_eq!(asked.next(), Some(500));
        assert_eq!(asked.take(499, 1), None);
        assert_eq!(asked.take(500, 1), Some((7, Due::Over)));
        assert_eq!((asked.next(), asked.until(7)), (Some(900), 0));
        // Asked anew, it has another time.
        asked.set(3, 1200, 0);
        assert_eq!((asked.take(900, 1), asked.next()), (None, Some(1200)));
        assert_eq!(asked.take(1200, 1), Some((3, Due::Over)));
        assert_eq!(asked.next(), None);
        // Of a VM that is not there nothing is kept.
        asked.set(MAX_VMS, 5, 0);
        assert_eq!((asked.next(), asked.until(MAX_VMS)), (None, 0));
    }

    #[test]
    fn a_vm_is_told_again_until_its_time_is_over() {
        let asked = Asked::new();
        asked.set(1, 350, 100);
        for now in [100, 200, 300] {
            assert_eq!((asked.next(), asked.take(now - 1, 100)), (Some(now), None));
            assert_eq!(asked.take(now, 100), Some((1, Due::Again)));
            assert_eq!(asked.take(now, 100), None, "once");
        }
        assert_eq!(asked.next(), Some(350), "not behind the end of its time");
        assert_eq!(asked.take(350, 100), Some((1, Due::Over)));
        asked.set(1, 350, 100);
        asked.forget(1);
        assert_eq!((asked.next(), asked.until(1)), (None, 0));
    }

    proptest! {
        /// None is forgotten, none comes early, and a thread that sleeps until the next has nothing to do before.
        #[test]
        fn all_come_in_time(
            times in proptest::collection::vec((0..MAX_VMS, 1u64..1000, 0u64..1000), 0..40),
            step in 1u64..50,
            every in 1u64..300,
        ) {
            let asked = Asked::new();
            let mut last = [0; MAX_VMS];
            for (vm, until, again) in times {
                asked.set(vm, until, again);
                last[vm] = until;
            }
            let mut now = 0;
            while let Some(next) = asked.next() {
                prop_assert!(last.iter().filter(|until| **until != 0).all(|until| next <= *until));
                now = now.max(next) + step - 1;
                while let Some((vm, due)) = asked.take(now, every) {
                    match due {
                        Due::Again => prop_assert!(last[vm] > now),
                        Due::Over => {
                            prop_assert!(last[vm] != 0 && last[vm] <= now, "{vm}");
                            last[vm] = 0;
                        }
                    }
                }
                prop_assert!(asked.next().is_none_or(|next| next > now));
            }
            prop_assert_eq!(last, [0; MAX_VMS]);
        }
    }
}
