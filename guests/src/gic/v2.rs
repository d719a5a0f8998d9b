//! GICv2 only: the CPU interface as registers in memory, SGIs with a sender.

use crate::mmio::write32;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Distributor: sends an SGI.
pub const SGIR: usize = 0xf00;
/// Distributor: takes SGIs away, a byte of senders for each.
pub const CPENDSGIR: usize = 0xf10;
/// Distributor: makes SGIs pending, a byte of senders for each.
pub const SPENDSGIR: usize = 0xf20;
/// Distributor: identification, architecture version in bits 7:4.
pub const ICPIDR2: usize = 0xfe8;
/// Distributor control: Group 0 on. Without the security extensions Linux uses this group.
pub const CTLR_GROUP0: u32 = 1;
/// Distributor control: Group 1 on.
pub const CTLR_GROUP1: u32 = 2;

/// CPU interface: control.
pub const GICC_CTLR: usize = 0x00;
/// CPU interface: priority mask.
pub const PMR: usize = 0x04;
/// CPU interface: binary point.
pub const BPR: usize = 0x08;
/// CPU interface: acknowledge.
pub const IAR: usize = 0x0c;
/// CPU interface: end of interrupt.
pub const EOIR: usize = 0x10;
/// CPU interface: running priority.
pub const RPR: usize = 0x14;
/// CPU interface: most urgent pending interrupt.
pub const HPPIR: usize = 0x18;
/// CPU interface: active priorities, four words.
pub const APR: usize = 0xd0;
/// CPU interface: identification.
pub const GICC_IIDR: usize = 0xfc;
/// CPU interface: deactivate.
pub const DIR: usize = 0x1000;

static GICC: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn set_base(gicc: usize) {
    GICC.store(gicc, Relaxed);
}

/// Address of the CPU interface.
#[inline(always)]
pub fn cpu_interface() -> usize {
    GICC.load(Relaxed)
}

/// Opens the CPU interface: all priorities, Group 0, EOI drops and deactivates.
pub fn init_cpu_interface() {
    write32(cpu_interface() + PMR, 0xff);
    write32(cpu_interface() + BPR, 0);
    for n in 0..4 {
        write32(cpu_interface() + APR + 4 * n, 0);
    }
    write32(cpu_interface() + GICC_CTLR, CTLR_GROUP0);
}
