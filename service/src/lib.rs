//! What the *service VM* serves, Bulkhead's own backend (`docs/adr/0024-shadow-virtqueues.md`): an
//! Ethernet switch and disks, for devices of guests whose virtqueues EL2 shadows.
//!
//! Everything here is pure: memory is reached through [`memory::Memory`], and what EL2 is to be
//! told is returned. The program around it, for bare metal, has six things to do
//! ([`backend::Backend`]):
//!
//! ```text
//! loop {
//!     take what EL2 has told          backend.take_told()
//!     serve a round                   backend.serve(now)
//!     ring for what was done          write backend.take_rings() to the page that traps
//!     say what devices have done      lines about backend.take_ended()
//!     if nothing is left to do: arm   backend.arm()
//!     if nothing has come meanwhile   wait for an interrupt
//! }
//! ```
//!
//! **Who is trusted.** EL2 is more privileged: what it writes (device pages, rings, descriptors) is
//! checked as far as that is cheap, so that a defect of it ends in a session that is not served.
//! What is *in* the buffers comes from guests. Whatever it is, it costs the guest that sent it no
//! more than a bounded time of the service VM, and its own frame or request.
#![no_std]
#![forbid(unsafe_code)]

pub mod backend;
mod bits;
pub mod counts;
pub mod disk;
pub mod lines;
pub mod memory;
pub mod queue;
pub mod session;
pub mod store;
pub mod switch;
