//! On which pCPU each vCPU is. Written by the pCPU that gives it away, read by whoever has something for it.
//!
//! Who leaves something for a vCPU does so first, and reads behind a barrier where it is. The pCPU that gives it away writes where it
//! goes, then hands it over; the new one has a barrier, too, and then looks at everything that may have been left. So what was left is
//! seen there, or its sender has read the new place (`docs/internals/locking.md`).

use core::sync::atomic::{AtomicU8, Ordering, fence};

use bulkhead_abi::plan::{MAX_VCPUS, MAX_VCPUS_PER_VM, Vcpu};

/// pCPUs of the vCPUs of a VM, by the number of the vCPU.
pub type Siblings = [AtomicU8; MAX_VCPUS_PER_VM];

/// See the module. By rows of the plan; behind the last there is room for a whole VM.
#[derive(Debug)]
pub struct VcpuLocation([AtomicU8; MAX_VCPUS + MAX_VCPUS_PER_VM]);

impl Default for VcpuLocation {
    fn default() -> Self {
        Self::new()
    }
}

impl VcpuLocation {
    /// All on pCPU 0.
    pub const fn new() -> Self {
        Self([const { AtomicU8::new(0) }; MAX_VCPUS + MAX_VCPUS_PER_VM])
    }

    /// Each is where the plan says.
    pub fn start(&self, vcpus: &[Vcpu]) {
        for (place, row) in self.0.iter().zip(vcpus) {
            place.store(row.pcpu as u8, Ordering::Relaxed);
        }
    }

    /// Index of the pCPU of a vCPU (row of the plan), after everything that was left for it.
    pub fn of(&self, id: usize) -> usize {
        fence(Ordering::SeqCst);
        self.0
            .get(id)
            .map_or(0, |place| usize::from(place.load(Ordering::Relaxed)))
    }

    /// A vCPU goes to another pCPU. By the one that has it.
    pub fn set(&self, id: usize, pcpu: usize) {
        if let Some(place) = self.0.get(id) {
            place.store(pcpu as u8, Ordering::Relaxed);
        }
    }

    /// The vCPUs of a VM, of which the first is row `first`.
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
