//! Reading and checking a plan. Called by the host tool that made the plan and by EL2 that gets it.
//!
//! The order is always the same: [`Plan::open`] (is this a plan at all), [`Plan::check`] (is it
//! free of conflicts), and at EL2 [`Plan::fits`] (is this the board that it was made for). Each
//! returns the first [`Violation`] that it finds; after all three EL2 can use the plan without
//! further checks.
//!
//! Nothing here panics, copies a plan or formats text.

#[cfg(test)]
mod bandwidth_tests;
mod board;
mod check;
#[cfg(test)]
mod colours_tests;
#[cfg(test)]
mod console_tests;
#[cfg(any(test, feature = "corruptions"))]
pub mod corrupt;
#[cfg(any(test, feature = "corruptions"))]
mod fields;
#[cfg(test)]
mod gppt_tests;
mod page_pool;
#[cfg(test)]
mod pool_tests;
#[cfg(test)]
pub(crate) mod rights_tests;
#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod service_tests;
mod span;
#[cfg(test)]
mod tests;
mod view;
mod violation;
#[cfg(test)]
mod virtio_tests;

pub use board::Found;
pub use check::may_be_allowed;
pub use page_pool::{PagePool, page_of};
pub use span::{Span, align_up, aligned};
pub use view::{OfVm, Plan, checksum, rows_of, seal};
pub use violation::{Check, Invariant, Violation, table_name, table_name_for};
