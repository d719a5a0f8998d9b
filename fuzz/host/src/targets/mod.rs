//! The targets: one for each edge.

pub mod boot_tree;
pub mod control;
pub mod description;
pub mod plan;
pub mod survey;

use bulkhead_fuzz::Target;

/// All targets; each has a program of its own.
pub const ALL: &[Target] = &[
    plan::TARGET,
    boot_tree::TARGET,
    description::TARGET,
    survey::TARGET,
    control::TARGET,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tool_knows_the_targets() {
        bulkhead_driver::fuzzing::assert_known("bulkhead-fuzz-host", ALL.iter().map(|it| it.name));
    }

    #[test]
    fn no_seed_breaks_its_target() {
        ALL.iter().for_each(bulkhead_fuzz::try_seeds);
    }
}
