//! The verbs that the user's tool leaves to the driver.

pub mod bench;
pub mod book;
pub mod fuzz;
pub mod interference;
pub mod mutants;
pub mod test;
