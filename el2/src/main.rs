//! The privileged binary: performs, at EL2, what `bulkhead-core` decides. `ARCHITECTURE.md` has the
//! map.
#![cfg_attr(target_os = "none", no_std, no_main)]
// What this profile has no use for is compiled all the same, and the linker leaves it out.
#![cfg_attr(feature = "static", allow(dead_code, unused_imports))]

#[cfg(target_os = "none")]
mod balance;
#[cfg(target_os = "none")]
mod bandwidth;
#[cfg(target_os = "none")]
mod calls;
#[cfg(target_os = "none")]
mod console;
#[cfg(target_os = "none")]
mod control;
#[cfg(target_os = "none")]
mod deadlines;
#[cfg(target_os = "none")]
mod debug;
#[cfg(target_os = "none")]
mod deliver;
#[cfg(target_os = "none")]
mod devices;
#[cfg(target_os = "none")]
mod dispatch;
#[cfg(target_os = "none")]
mod doorbell;
#[cfg(target_os = "none")]
mod emulated;
#[cfg(target_os = "none")]
mod entry;
#[cfg(target_os = "none")]
mod gppt;
#[cfg(target_os = "none")]
mod hw;
#[cfg(target_os = "none")]
mod idle;
#[cfg(target_os = "none")]
mod lifecycle;
#[cfg(target_os = "none")]
mod mailbox;
#[cfg(target_os = "none")]
mod managers;
#[cfg(target_os = "none")]
mod monitor;
#[cfg(target_os = "none")]
mod orders;
#[cfg(target_os = "none")]
mod pcpu;
#[cfg(target_os = "none")]
mod plan;
mod pmu;
#[cfg(target_os = "none")]
mod prepare;
#[cfg(target_os = "none")]
mod profile;
#[cfg(target_os = "none")]
mod random;
#[cfg(target_os = "none")]
mod reach;
#[cfg(target_os = "none")]
#[cfg_attr(feature = "static", path = "alone.rs")]
mod sched;
#[cfg(target_os = "none")]
mod service;
#[cfg(target_os = "none")]
mod start;
#[cfg(target_os = "none")]
mod stops;
#[cfg(target_os = "none")]
mod timed;
#[cfg(target_os = "none")]
mod vcpu;
#[cfg(target_os = "none")]
mod virtio;
#[cfg(target_os = "none")]
mod vm;

/// On a host the binary does nothing: the crate is only checked there.
#[cfg(not(target_os = "none"))]
fn main() {
    println!("bulkhead-el2 runs at EL2 only; build it with `bulkhead build`");
}
