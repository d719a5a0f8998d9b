//! What a manager has not been told yet: a bit for each VM, so that it is bounded whatever happens, and nothing is lost but what has been
//! overtaken by something newer (`docs/internals/locking.md`).

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// What can have changed about a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Its phase, or a life has begun or ended.
    State,
    /// Its weights, caps, budgets or pools.
    Limits,
    /// It has printed something.
    Output,
}

/// The VMs of which a manager has to be told.
#[derive(Debug)]
pub struct Events {
    state: AtomicU64,
    limits: AtomicU64,
    output: AtomicU64,
    /// VMs whose next byte is to be told.
    listens: AtomicU64,
    /// Somebody serves the port, and looks once more when that is done.
    in_turn: AtomicBool,
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
            output: AtomicU64::new(0),
            listens: AtomicU64::new(0),
            in_turn: AtomicBool::new(false),
        }
    }

    /// Anybody, after the change: the manager has to be told. `true`: whoever serves its port must be made to look. `false`: somebody
    /// serves it at this moment and finds it.
    #[must_use]
    pub fn mark(&self, vm: usize, changed: Changed) -> bool {
        let word = match changed {
            Changed::State => &self.state,
            Changed::Limits => &self.limits,
            Changed::Output => &self.output,
        };
        word.fetch_or(1u64.wrapping_shl(vm as u32), Ordering::AcqRel);
        // Either this finds that nobody serves the port any more, or the look of [`Self::end_turn`] finds the mark.
        fence(Ordering::SeqCst);
        !self.in_turn.load(Ordering::Relaxed)
    }

    /// Who serves the port, one at a time: begins. [`Self::end_turn`] follows.
    pub fn begin_turn(&self) {
        self.in_turn.store(true, Ordering::Relaxed);
    }

    /// Who serves the port: ends. `true`: there is something of which nobody else has been told.
    #[must_use]
    pub fn end_turn(&self) -> bool {
        self.in_turn.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.any()
    }

    /// Whether there is something to be told.
    #[inline(always)]
    pub fn any(&self) -> bool {
        let (state, limits) = (
            self.state.load(Ordering::Relaxed),
            self.limits.load(Ordering::Relaxed),
        );
        state | limits | self.output.load(Ordering::Relaxed) != 0
    }

    /// Who serves the port: takes a VM of which the manager has to be told. What is read of it from now on is as new as the change.
    pub fn take(&self) -> Option<(usize, Changed)> {
        for (word, changed) in [
            (&self.state, Changed::State),
            (&self.limits, Changed::Limits),
            (&self.output, Changed::Output),
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
        self.output.swap(0, Ordering::AcqRel);
        self.listens.swap(0, Ordering::AcqRel);
    }

    /// Who serves the port: the manager has read all that a VM has printed, and is to be told when there is more. It must then look a second time.
    pub fn listen(&self, vm: usize) {
        let bit = 1u64.wrapping_shl(vm as u32);
        self.listens.fetch_or(bit, Ordering::Relaxed);
        // Either its second look finds what is printed meanwhile, or [`Self::heard`] finds that it listens.
        fence(Ordering::SeqCst);
    }

    /// Who drains the console, after it has kept what VMs have printed, a bit for each. `true`: the manager listened and has to be told, and whoever serves its
    /// port must look.
    pub fn heard(&self, vms: u64) -> bool {
        fence(Ordering::SeqCst);
        let heard = self.listens.load(Ordering::Relaxed) & vms;
        if heard == 0 {
            return false;
        }
        // Who listens once more meanwhile is told once more.
        self.listens.fetch_and(!heard, Ordering::Relaxed);
        self.output.fetch_or(heard, Ordering::AcqRel);
        true
    }
}
