//! The physical GIC as EL2 uses it. A build of EL2 supports one version of the architecture, so
//! that hot paths need no branch: [`v3`], or [`v2`] with the feature `gicv2`. The common parts are
//! in [`registers`], [`pcpu`] and [`mod@send`].

#[cfg(not(feature = "gicv2"))]
mod by_spi;
mod call_spis;
#[cfg(not(feature = "gicv2"))]
pub mod gppt;
#[cfg(feature = "gicv2")]
#[path = "gppt_v2.rs"]
pub mod gppt;
#[cfg(not(feature = "gicv2"))]
mod gppt_interface;
#[cfg(not(feature = "gicv2"))]
mod gppt_pcpus;
#[cfg(not(feature = "gicv2"))]
pub mod gppt_shared;
mod pcpu;
mod registers;
mod revoke;
mod send;
pub mod spis;
#[cfg(feature = "gicv2")]
mod v2;
#[cfg(feature = "gicv2")]
use v2 as version;
#[cfg(not(feature = "gicv2"))]
mod v3;
#[cfg(not(feature = "gicv2"))]
use v3 as version;

use super::sysreg::interrupt_waits;
pub use super::sysreg::publish;
pub use pcpu::{Gic, signal_nothing};
pub use registers::{
    GPPT_KICK, KICK, SIBLING, Taken, VirtualInterface, configure, order_acknowledge,
};
pub use send::{send, send_sgi, send_sgi_to, send_to};
pub use version::{
    VERSION, VIRTUAL, acknowledge, acknowledge_group0, deactivate, drop_priority,
    ends_in_two_steps, gate, most_urgent, private_frames, route, set_timer_register,
    start_distributor,
};

/// Waits for an interrupt on pCPU `index`, which is this one and has nothing to run; `for_guest`: in
/// the place of its GPPT VM, whose interrupts are open. A separate symbol for measurements: time
/// spent here delays no guest.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn el2_wait(index: usize, for_guest: bool) {
    gppt::wait(index, for_guest);
}

/// Whether an interrupt waits for this pCPU, which has masked all (ISR_EL1). A separate symbol for measurements: no slice of long work is longer than
/// the time between two looks.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn el2_look() -> bool {
    interrupt_waits()
}
