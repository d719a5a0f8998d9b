//! `bulkhead test`: everything that the project claims, each claim with a test that fails when it is
//! false.

mod attach;
mod bare;
mod boards;
mod book;
mod builds;
mod cargo;
mod catalogue;
mod code;
mod cpus;
mod debian;
mod description;
mod docs;
mod end_to_end;
mod fuzz;
mod init;
mod interrupt;
mod judge;
mod matrix;
mod mutants;
mod page;
mod plans;
mod programs;
mod proxy;
mod refusals;
mod sanitizer;
mod scenario;
mod stage2;
mod steady;
mod suite;
mod systems;
mod tally;
mod terminal;
mod test_programs;
mod tool;
mod trial;
mod uboot;
mod watch;

pub(crate) use cargo::cargo;
pub use catalogue::all;
pub use matrix::tests as matrix_tests;
pub use scenario::{Scenario, SystemSource};
pub use suite::{Context, Done, Test, Told, run};
pub use systems::{scenarios, tests as system_tests};
pub use trial::Trial;
pub use watch::{Ending, RunCost};
