//! The SGIs of pCPUs, each pending or not.

use loom::sync::atomic::{AtomicBool, Ordering};

use crate::mailbox::Kick;

/// The interrupt controller is no memory: it forgets nothing.
#[derive(Debug)]
pub struct Sgis<const PCPUS: usize>([AtomicBool; PCPUS]);

impl<const PCPUS: usize> Default for Sgis<PCPUS> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicBool::new(false)))
    }
}

impl<const PCPUS: usize> Sgis<PCPUS> {
    /// The pCPU takes its SGI, if it is pending.
    pub fn take(&self, pcpu: usize) -> bool {
        self.0[pcpu].swap(false, Ordering::AcqRel)
    }
}

impl<const PCPUS: usize> Kick for Sgis<PCPUS> {
    fn kick(&self, pcpu: usize) {
        // The barrier before the SGI, and the SGI.
        self.0[pcpu].swap(true, Ordering::AcqRel);
    }
}
