//! The pCPU on which each vCPU is. Written by the pCPU that migrates it away, read by any sender of
//! a notification to it.
//!
//! A sender leaves its message for the vCPU first, then executes a barrier and reads the location.
//! The pCPU that migrates the vCPU writes the new location, then hands it over; the new pCPU
//! executes a barrier, too, and then checks everything that may have been left for it. So either
//! the new pCPU sees the message, or its sender has read the new location
//! (`docs/internals/locking.md`).

use core::sync::atomic::{AtomicU8, Ordering, fence};

use bulkhead_abi::plan::{MAX_VCPUS, MAX_VCPUS_PER_VM, Vcpu};

/// Locations of the vCPUs of a VM, by the number of the vCPU.
pub type Siblings = [AtomicU8; MAX_VCPUS_PER_VM];

/// Locations of all vCPUs, by rows of the plan; behind the last row there is space for the vCPUs of
/// a whole VM, so that [`VcpuLocation::siblings`] of any row is a full array.
#[derive(Debug)]
pub struct VcpuLocation([AtomicU8; MAX_VCPUS + MAX_VCPUS_PER_VM]);

impl Default for VcpuLocation {
    fn default() -> Self {
        Self::new()
    }
}

impl VcpuLocation {
    /// Locations in which all vCPUs are on pCPU 0.
    pub const fn new() -> Self {
        Self([const { AtomicU8::new(0) }; MAX_VCPUS + MAX_VCPUS_PER_VM])
    }

    /// Sets the locations to those of the plan.
    pub fn start(&self, vcpus: &[Vcpu]) {
        for (place, row) in self.0.iter().zip(vcpus) {
            place.store(row.pcpu as u8, Ordering::Relaxed);
        }
    }

    /// Returns the index of the pCPU of a vCPU (row of the plan). Everything that was left for the
    /// vCPU before the call is ordered before the read.
    #[inline(always)]
    pub fn of(&self, id: usize) -> usize {
        fence(Ordering::SeqCst);
        self.0
            .get(id)
            .map_or(0, |place| usize::from(place.load(Ordering::Relaxed)))
    }

    /// Sets the pCPU of a vCPU. Called on the pCPU that has the vCPU.
    pub fn set(&self, id: usize, pcpu: usize) {
        if let Some(place) = self.0.get(id) {
            place.store(pcpu as u8, Ordering::Relaxed);
        }
    }

    /// The locations of the vCPUs of a VM whose first vCPU is row `first`.
    pub fn siblings(&self, first: usize) -> Option<&Siblings> {
        self.0.get(first..)?.first_chunk()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;
    use zerocopy::FromZeros;

    #[test]
    fn each_is_where_it_was_put_last() {
        let rows: Vec<Vcpu> = (0..MAX_VCPUS as u16)
            .map(|n| Vcpu {
                pcpu: n % 8,
                ..Vcpu::new_zeroed()
            })
            .collect();
        let locations = VcpuLocation::new();
        locations.start(&rows);
        locations.set(9, 5);
        assert_eq!(
            [8, 9, 10, 63, 200].map(|id| locations.of(id)),
            [0, 5, 2, 7, 0]
        );
        let siblings = locations.siblings(8).unwrap();
        assert_eq!(siblings[1].load(Ordering::Relaxed), 5);
        assert!(locations.siblings(MAX_VCPUS - 1).is_some());
    }
}
