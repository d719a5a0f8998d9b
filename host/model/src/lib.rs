//! Descriptions and boards: reads them, and diagnoses and explains what is wrong with them. Nothing here runs a
//! program.
#![forbid(unsafe_code)]

pub mod board;
pub mod checkout;
pub mod describe;
pub mod explain;
pub mod failure;
pub mod payload;
pub mod plural;
pub mod survey;
