//! Stage-2 translation: from a VM's regions to its tables.

mod size;

pub use size::pages_needed;
