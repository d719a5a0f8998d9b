//! Mutation testing of what runs at EL2: one piece of its code is replaced, EL2 built from a copy of the sources, and system
//! tests run on it until one fails (docs/internals/mutants.md).

mod assembly;
mod copy;
mod mutant;
mod rust;
mod sources;
mod tables;
mod trying;

pub use mutant::{Key, Kind, Mutant};
pub use sources::{Source, draw, mutants, seed, sources};
pub use tables::Tables;
pub use trying::{Bench, Fate, Told, Work};
