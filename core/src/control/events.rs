//! What a manager has not been told yet: a bit for each VM, so that it is bounded whatever happens, and nothing is lost but what has been
//! overtaken by something newer (`docs/internals/locking.md`).

use core::sync::atomic::{AtomicU64, Ordering};

/// What can have changed about a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Its phase, or a life has begun or ended.
    State,
    /// Its weights, caps, budgets or pools.
    Limits,
}

/// The VMs of which a manager has to be told.
#[derive(Debug)]
pub struct Events {
    state: AtomicU64,
    limits: AtomicU64,
}

impl Default for Events {
    fn default() -> Self {
        Self::new()
    }
}

impl Events {
    /// Nothing has changed.
    pub const fn new() -> Self {
        Self {
            state: AtomicU64::new(0),
            limits: AtomicU64::new(0),
        }
    }

    /// Anybody, after the change: the manager has to be told. Whoever serves its port must then look.
    pub fn mark(&self, vm: usize, changed: Changed) {
        let word = match changed {
            Changed::State => &self.state,
            Changed::Limits => &self.limits,
        };
        word.fetch_or(1u64.wrapping_shl(vm as u32), Ordering::AcqRel);
    }

    /// Who serves the port: takes a VM of which the manager has to be told. What is read of it from now on is as new as the change.
    pub fn take(&self) -> Option<(usize, Changed)> {
        for (word, changed) in [
            (&self.state, Changed::State),
            (&self.limits, Changed::Limits),
        ] {
            let vms = word.load(Ordering::Relaxed);
            if vms != 0 {
                let bit = vms & vms.wrapping_neg();
                word.fetch_and(!bit, Ordering::AcqRel);
                return Some((bit.trailing_zeros() as usize, changed));
            }
        }
        None
    }

    /// Who serves the port: forgets all. What is read from now on is as new as what is forgotten.
    pub fn forget(&self) {
        self.state.swap(0, Ordering::AcqRel);
        self.limits.swap(0, Ordering::AcqRel);
    }
}
