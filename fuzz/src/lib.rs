//! Fuzzing on the host: each edge at which Bulkhead meets bytes that somebody else chose is a
//! [`Target`], and [`engine`] looks for the input that breaks it.
//!
//! The engine is guided by coverage if the code was built with LLVM's 8-bit counters, as `bulkhead fuzz`
//! does, and is a plain generator of variants otherwise. It needs nothing but the compiler.

mod command;
pub mod engine;
mod sys;
pub mod targets;

pub use command::main;

/// Tries the seeds of a target, of which there has to be one, and an input without bytes: for its tests.
///
/// # Panics
///
/// One of them breaks it.
pub fn try_seeds(target: &Target) {
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty(), "{}", target.name);
    for seed in seeds {
        (target.run)(&seed);
    }
    (target.run)(&[]);
}

/// An edge that is fuzzed.
pub struct Target {
    /// Name on the command line; `bulkhead_driver::fuzzing` says what holds for every input.
    pub name: &'static str,
    /// Good inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words that the inputs are made of, for mutations.
    pub words: &'static [&'static str],
    /// Tries an input. A panic is a finding.
    pub run: fn(&[u8]),
}
