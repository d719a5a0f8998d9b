//! The targets: one for each edge.

pub mod calls;
pub mod channel;
pub mod clocks;
pub mod console;
pub mod exits;
pub mod registers;
pub mod stage2;
pub mod uart;
pub mod vgic;
pub mod virtio;

use crate::Target;

/// All targets; each has a program of its own.
pub const ALL: &[Target] = &[
    exits::TARGET,
    registers::TARGET,
    calls::TARGET,
    clocks::TARGET,
    uart::TARGET,
    console::TARGET,
    stage2::TARGET,
    vgic::TARGET,
    virtio::TARGET,
    channel::TARGET,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tool_knows_the_targets() {
        bulkhead_driver::fuzzing::assert_known("bulkhead-fuzz", ALL.iter().map(|it| it.name));
    }

    #[test]
    fn no_seed_breaks_its_target() {
        ALL.iter().for_each(crate::try_seeds);
    }
}
