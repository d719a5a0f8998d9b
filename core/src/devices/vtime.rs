//! The virtual time of a VM: what CNTVOFF_EL2 is over pauses. A guest's virtual counter is the physical one
//! less the offset; a VM whose time stops in pauses (`VM_TIME_STOPS`) has an offset that grows by each.
//!
//! All vCPUs of a VM have one offset, so that their counters agree. They pause one after the other; time
//! stands still at the latest moment that any of them has seen, and none ever sees it go back.

use core::sync::atomic::{AtomicU64, Ordering};

/// The virtual time of one VM, shared by the pCPUs of its vCPUs. Zeros are a VM that starts.
#[derive(Debug, Default)]
#[repr(C)]
pub struct VirtualTime {
    offset: AtomicU64,
    /// Physical counter when the last vCPU paused; 0 while the VM runs.
    frozen: AtomicU64,
}

impl VirtualTime {
    /// A VM that starts: its virtual counter is the physical one.
    pub const fn new() -> Self {
        Self {
            offset: AtomicU64::new(0),
            frozen: AtomicU64::new(0),
        }
    }

    /// Before the VM starts, and before it starts again.
    pub fn reset(&self) {
        self.offset.store(0, Ordering::Relaxed);
        self.frozen.store(0, Ordering::Relaxed);
    }

    /// CNTVOFF_EL2 of every vCPU.
    pub fn offset(&self) -> u64 {
        self.offset.load(Ordering::Acquire)
    }

    /// What the virtual counter shows; of a VM that is paused what it showed at the end.
    pub fn counter(&self, now: u64) -> u64 {
        now.wrapping_sub(self.offset())
    }

    /// Value of the physical counter at which the virtual one shows `virtual_count`.
    pub fn physical(&self, virtual_count: u64) -> u64 {
        virtual_count.saturating_add(self.offset())
    }

    /// A vCPU has stopped running, at `now` (physical counter). By the pCPU of each vCPU.
    pub fn pause(&self, now: u64) {
        self.frozen.fetch_max(now, Ordering::AcqRel);
    }

    /// The VM goes on at `now`. By one pCPU, when all vCPUs have paused and before any of them runs again.
    /// `stops`: the VM's time stands still in pauses.
    pub fn resume(&self, now: u64, stops: bool) {
        let frozen = self.frozen.swap(0, Ordering::AcqRel);
        if stops && frozen != 0 {
            let offset = resumed(self.offset.load(Ordering::Relaxed), frozen, now);
            self.offset.store(offset, Ordering::Release);
        }
    }
}

/// The offset after a pause from `frozen` to `now`, both of the physical counter.
pub const fn resumed(offset: u64, frozen: u64, now: u64) -> u64 {
    // The pCPU that resumes may have read its counter a moment before the last one paused.
    offset.wrapping_add(now.saturating_sub(frozen))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn time_stands_still_or_goes_on() {
        for (stops, shown) in [(true, 1_000), (false, 5_000)] {
            let time = VirtualTime::new();
            assert_eq!(time.counter(700), 700);
            time.pause(900);
            time.pause(1_000);
            time.pause(950);
            time.resume(5_000, stops);
            assert_eq!(time.counter(5_000), shown);
            assert_eq!(time.physical(shown), 5_000);
        }
    }

    #[test]
    fn a_resume_without_a_pause_changes_nothing() {
        let time = VirtualTime::new();
        time.resume(5_000, true);
        assert_eq!(time.offset(), 0);
        time.pause(6_000);
        time.resume(5_999, true);
        assert_eq!(time.offset(), 0, "not even by a pCPU that was early");
        time.pause(6_000);
        time.resume(7_000, true);
        time.reset();
        assert_eq!(time.counter(8_000), 8_000);
    }

    proptest! {
        /// Over any pauses of any vCPUs the counter never goes back, and what it loses is the pauses.
        #[test]
        fn time_never_goes_back(
            rounds in proptest::collection::vec((0u64..1_000, proptest::collection::vec(0u64..50, 1..8), 0u64..10_000), 1..20),
            stops: bool,
        ) {
            let time = VirtualTime::new();
            let (mut now, mut paused) = (0u64, 0u64);
            for (run, late, pause) in rounds {
                now += run;
                let mut last = 0;
                for late in &late {
                    time.pause(now + late);
                    last = last.max(time.counter(now + late));
                }
                let frozen = now + late.iter().max().unwrap();
                now = frozen + pause;
                paused += if frozen == 0 { 0 } else { pause };
                time.resume(now, stops);
                prop_assert!(time.counter(now) >= last);
                prop_assert_eq!(time.counter(now), if stops { now - paused } else { now });
            }
        }
    }
}
