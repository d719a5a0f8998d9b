//! smoltcp on the network card of a guest.
#![cfg_attr(target_os = "none", no_std)]

mod wire;

use bulkhead_guests::timer;
use smoltcp::time::Instant;

pub use wire::Wire;

/// The time as smoltcp has it.
pub fn now() -> Instant {
    Instant::from_micros((timer::nanoseconds(timer::now()) / 1000) as i64)
}
