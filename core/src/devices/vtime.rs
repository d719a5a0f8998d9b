//! The virtual time of a VM: the value of CNTVOFF_EL2 across pauses. A guest's virtual counter is
//! the physical counter less the offset; if the time of a VM stops while it is paused
//! (`VM_TIME_STOPS`), each pause adds its length to the offset.
//!
//! All vCPUs of a VM have the same offset, so that their counters agree. They pause one after the
//! other; time stops at the latest moment that any of them has seen, so no vCPU ever sees it go
//! back.

use core::sync::atomic::{AtomicU64, Ordering};

/// The virtual time of one VM, shared by the pCPUs of its vCPUs. All zeros is the state of a VM
/// that starts.
#[derive(Debug, Default)]
#[repr(C)]
pub struct VirtualTime {
    offset: AtomicU64,
    /// Value of the physical counter when the last vCPU paused; 0 while the VM runs.
    frozen: AtomicU64,
}

impl VirtualTime {
    /// The time of a VM that starts: its virtual counter is the physical counter.
    pub const fn new() -> Self {
        Self {
            offset: AtomicU64::new(0),
            frozen: AtomicU64::new(0),
        }
    }

    /// Resets the time before the VM starts or restarts.
    pub fn reset(&self) {
        self.offset.store(0, Ordering::Relaxed);
        self.frozen.store(0, Ordering::Relaxed);
    }

    /// The value of CNTVOFF_EL2 for every vCPU.
    pub fn offset(&self) -> u64 {
        self.offset.load(Ordering::Acquire)
    }

    /// The virtual counter when the physical counter reads `now`; of a paused VM as of the end of
    /// its last run.
    pub fn counter(&self, now: u64) -> u64 {
        now.wrapping_sub(self.offset())
    }

    /// Value of the physical counter at which the virtual counter reads `virtual_count`.
    pub fn physical(&self, virtual_count: u64) -> u64 {
        virtual_count.saturating_add(self.offset())
    }

    /// Records that a vCPU has stopped running at `now` (physical counter). Called on the pCPU of
    /// each vCPU.
    pub fn pause(&self, now: u64) {
        self.frozen.fetch_max(now, Ordering::AcqRel);
    }

    /// Resumes the VM at `now`. Called by one pCPU, when all vCPUs have paused and before any of
    /// them runs again. `stops`: whether the VM's time stops while it is paused.
    pub fn resume(&self, now: u64, stops: bool) {
        let frozen = self.frozen.swap(0, Ordering::AcqRel);
        if stops && frozen != 0 {
            let offset = resumed(self.offset.load(Ordering::Relaxed), frozen, now);
            self.offset.store(offset, Ordering::Release);
        }
    }
}

/// The offset after a pause from `frozen` to `now`, both values of the physical counter.
pub const fn resumed(offset: u64, frozen: u64, now: u64) -> u64 {
    // The pCPU that resumes may have read its counter a moment before the last vCPU paused.
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
        /// The counter never goes back, and it loses exactly the pauses, for any pauses of vCPUs.
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
