//! The end of a board of which a pCPU has another cache than the plan says. Each pCPU looks before it runs a VM; the one that drains the console, which has the
//! UART, says it.

use core::sync::atomic::{AtomicU32, Ordering};

use bulkhead_abi::refused;
use bulkhead_core::console::text::TextLine;

use super::state::wake_drainer;
use crate::hw::{cpu, fault};
use crate::vcpu::Vcpu;

/// Bit of [`FOUND`] that tells it from 0.
const IS_FOUND: u32 = 1 << 31;
/// The index of the last pCPU that has found another cache, above its colours; 0: none has.
static FOUND: AtomicU32 = AtomicU32::new(0);

/// Tells the drainer of the colours that the cache of this pCPU has. No VM runs here.
#[cold]
pub fn refuse(vcpu: &mut Vcpu, colours: u32) -> ! {
    let found = IS_FOUND | (vcpu.index as u32) << 8 | colours;
    FOUND.store(found, Ordering::Relaxed);
    wake_drainer();
    while vcpu.console().is_none() {
        cpu::wait();
    }
    say(found)
}

/// Switches the board off, if a pCPU has found another cache. On the pCPU that drains the console.
#[inline(always)]
pub fn look() {
    let found = FOUND.load(Ordering::Relaxed);
    if found != 0 {
        say(found)
    }
}

#[cold]
#[inline(never)]
fn say(found: u32) -> ! {
    let mut line = TextLine::new();
    line.text(refused!("board-colours: those of the cache of pcpu "))
        .decimal((found & !IS_FOUND).wrapping_shr(8).into())
        .text(" are ")
        .decimal((found & 0xff).into());
    fault::el2_fault(&line)
}
