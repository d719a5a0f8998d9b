//! `bulkhead test`: everything that the project claims, each claim with a test that fails when it is
//! false.

mod attach;
mod bare;
mod boards;
mod book;
mod catalogue;
mod code;
mod cpus;
mod description;
mod docs;
mod fuzz;
mod init;
mod interrupt;
mod judge;
mod matrix;
mod page;
mod plans;
mod programs;
mod proxy;
mod refusals;
mod sanitizer;
mod scenario;
mod stage2;
mod suite;
mod systems;
mod tally;
mod terminal;
mod uboot;
mod whole;

pub use catalogue::all;
pub(crate) use code::cargo;
pub use judge::Judge;
pub use scenario::{Scenario, SystemSource};
pub use suite::{Context, Done, Job, Stage, Test, Told, run};
pub use systems::{Ended, scenarios, watch};
