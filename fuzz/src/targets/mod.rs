//! The targets: one for each edge.

mod boot_tree;
mod calls;
mod clocks;
mod console;
mod description;
mod exits;
mod plan;
mod registers;
mod stage2;
mod survey;
mod uart;
mod vgic;

use crate::Target;

/// All targets.
pub const ALL: &[Target] = &[
    plan::TARGET,
    boot_tree::TARGET,
    description::TARGET,
    survey::TARGET,
    exits::TARGET,
    registers::TARGET,
    calls::TARGET,
    clocks::TARGET,
    uart::TARGET,
    console::TARGET,
    stage2::TARGET,
    vgic::TARGET,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tool_knows_the_targets() {
        let known: Vec<_> = bulkhead_driver::fuzzing::TARGETS
            .iter()
            .map(|target| target.name)
            .collect();
        let there: Vec<_> = ALL.iter().map(|target| target.name).collect();
        assert_eq!(known, there);
    }

    #[test]
    fn no_seed_breaks_its_target() {
        for target in ALL {
            let seeds = (target.seeds)();
            assert!(!seeds.is_empty(), "{}", target.name);
            for seed in seeds {
                (target.run)(&seed);
            }
            (target.run)(&[]);
        }
    }
}
