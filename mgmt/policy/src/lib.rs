//! Weights, caps, budgets and pools that follow measured load: a file of rules ([`reader`]), what is measured ([`meter`]), what is decided
//! ([`controller`], which is pure), and what is done about it through EL2's control port ([`engine`]). EL2 checks each change by the rules
//! of the plan and refuses what does not fit: nothing here can promise what the plan does not allow.
#![forbid(unsafe_code)]

pub mod ask;
mod backoff;
pub mod check;
pub mod controller;
pub mod engine;
pub mod fault;
pub mod meter;
pub mod reader;
pub mod rule;
pub mod table;
