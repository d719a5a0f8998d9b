//! The vCPU as its guest sees it: exits, system registers, injected exceptions, firmware calls,
//! power states.

pub mod answers;
pub mod debug;
pub mod errata;
pub mod exit;
pub mod inject;
pub mod keys;
pub mod life;
pub mod pmu;
#[cfg(test)]
mod pmu_tests;
pub mod power;
pub mod psci;
pub mod pvtime;
pub mod smccc;
pub mod sysreg;
pub mod trng;
