//! GICv3 only: a redistributor for each CPU, the CPU interface as system registers, affinity
//! routing.

use crate::board::Range;
use crate::cpu;
use crate::mmio::{read32, read64, write32};
use crate::sysreg::isb;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Group modifiers.
pub const IGRPMODR: usize = 0x0d00;
/// Routes: 64 bits for each SPI, from INTID 0 on.
pub const IROUTER: usize = 0x6000;
/// Architecture version, in distributor and redistributor.
pub const PIDR2: usize = 0xffe8;
/// Redistributor type (64 bits).
pub const GICR_TYPER: usize = 0x0008;
/// Redistributor sleep.
pub const GICR_WAKER: usize = 0x0014;
/// The second frame of a redistributor: SGIs and PPIs, laid out as in the distributor.
pub const SGI_FRAME: usize = 0x1_0000;
/// Bytes from a redistributor to the next.
pub const STRIDE: usize = 0x2_0000;

/// Distributor control: Group 0 on.
pub const CTLR_GROUP0: u32 = 1 << 0;
/// Distributor control: Group 1 on.
pub const CTLR_GROUP1: u32 = 1 << 1;
/// Distributor control: affinity routing.
pub const CTLR_ARE: u32 = 1 << 4;
/// Distributor control: a write has not taken effect everywhere yet.
pub const CTLR_RWP: u32 = 1 << 31;
/// Redistributor control: the same.
pub const GICR_RWP: u32 = 1 << 3;

static GICR: AtomicUsize = AtomicUsize::new(0);
static GICR_END: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn set_bases(gicr: Range) {
    GICR.store(gicr.base, Relaxed);
    GICR_END.store(gicr.end(), Relaxed);
}

/// Address of the redistributor of this CPU.
pub fn redistributor() -> usize {
    redistributor_of(cpu::number())
}

/// Address of the redistributor of a CPU: the one that says that it serves it; the first if none does.
pub fn redistributor_of(cpu: usize) -> usize {
    let wanted = cpu::affinity(cpu);
    let wanted = wanted >> 8 & 0xff00_0000 | wanted & 0xff_ffff;
    let (mut at, end) = (GICR.load(Relaxed), GICR_END.load(Relaxed));
    while at < end {
        let typer = read64(at + GICR_TYPER);
        if typer >> 32 == wanted {
            return at;
        }
        if typer & 1 << 4 != 0 {
            break;
        }
        at += STRIDE;
    }
    GICR.load(Relaxed)
}

/// Address of the 32-bit register with the bit of `intid` (a private one) of another CPU.
pub fn word_of(cpu: usize, register: usize) -> usize {
    redistributor_of(cpu) + SGI_FRAME + register
}

/// Wakes the redistributor of this CPU.
pub(crate) fn wake() {
    let gicr = redistributor();
    write32(gicr + GICR_WAKER, 0);
    while read32(gicr + GICR_WAKER) & 4 != 0 {}
}

/// Opens the CPU interface: system registers, all priorities, Group 1, EOI drops and deactivates.
pub fn init_cpu_interface() {
    msr!("icc_sre_el1", 7);
    isb();
    msr!("icc_pmr_el1", 0xff);
    msr!("icc_bpr1_el1", 0);
    msr!("icc_ctlr_el1", 0);
    msr!("icc_igrpen1_el1", 1);
    isb();
}

/// Value of ICC_SGI1R_EL1 that sends SGI `intid` to the CPUs of this cluster whose bits are set.
#[inline(always)]
pub fn sgi(intid: u32, cpus: u8) -> u64 {
    let here = mrs!("mpidr_el1");
    let (aff1, aff2, aff3) = (here >> 8 & 0xff, here >> 16 & 0xff, here >> 32 & 0xff);
    u64::from(cpus) | aff1 << 16 | u64::from(intid) << 24 | aff2 << 32 | aff3 << 48
}
