//! SGIs of EL2 to pCPUs.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use super::super::sysreg;
use super::registers::target;
#[cfg(feature = "gicv2")]
use super::v2 as version;
#[cfg(not(feature = "gicv2"))]
use super::v3 as version;

/// Sends an SGI to a pCPU, after everything that was written before it. A pCPU that has not started
/// its interrupts misses it.
#[inline(always)]
pub fn send(sgi: u32, pcpu: usize) {
    sysreg::publish();
    version::send(sgi, target(pcpu));
}

/// Sends an SGI like [`send`], unless an SPI replaces it. Returns `false` if so, and has sent nothing.
#[inline(always)]
pub fn send_sgi(sgi: u32, pcpu: usize) -> bool {
    sysreg::publish();
    version::send_sgi(sgi, target(pcpu))
}

/// Sends an SGI like [`send`], to the pCPU that `place` holds after everything that was written:
/// see `bulkhead_core::sync::VcpuLocation`.
#[inline(always)]
pub fn send_to(sgi: u32, place: &AtomicU8) {
    sysreg::publish();
    version::send(sgi, target(usize::from(place.load(Relaxed))));
}

/// Sends an SGI like [`send_to`], unless an SPI replaces it or it would come back to pCPU `own`, which
/// is this one. Returns `false` if so, and has sent nothing: the caller has a tail call for that, and no
/// stack frame on the path of SGIs.
#[inline(always)]
pub fn send_sgi_to(sgi: u32, place: &AtomicU8, own: usize) -> bool {
    sysreg::publish();
    let pcpu = usize::from(place.load(Relaxed));
    pcpu != own && version::send_sgi(sgi, target(pcpu))
}
