//! A GICv2 has no pCPU whose VM takes its interrupts itself in this version.

use super::{Gic, KICK};

/// None is.
pub const fn is_there(_: usize) -> bool {
    false
}

/// Makes a pCPU look into its mailbox.
pub fn kick(pcpu: usize) {
    super::send(KICK, pcpu);
}

impl Gic {
    /// Nothing: see the module.
    pub(super) const fn own(&self, _: u32) {}
}
