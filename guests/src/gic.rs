//! GICv3 (IHI 0069H): distributor, the redistributor of this CPU, and the CPU interface.

use crate::mmio::{read32, read64, write8, write32, write64};
use crate::sysreg::{dsb, isb};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Distributor control.
pub const CTLR: usize = 0x0000;
/// Distributor type.
pub const TYPER: usize = 0x0004;
/// Implementer.
pub const IIDR: usize = 0x0008;
/// Groups: one bit for each interrupt.
pub const IGROUPR: usize = 0x0080;
/// Enables.
pub const ISENABLER: usize = 0x0100;
/// Disables.
pub const ICENABLER: usize = 0x0180;
/// Makes pending.
pub const ISPENDR: usize = 0x0200;
/// Takes pending away.
pub const ICPENDR: usize = 0x0280;
/// Makes active.
pub const ISACTIVER: usize = 0x0300;
/// Takes active away.
pub const ICACTIVER: usize = 0x0380;
/// Priorities: 8 bits for each interrupt.
pub const IPRIORITYR: usize = 0x0400;
/// Triggers: 2 bits for each interrupt.
pub const ICFGR: usize = 0x0c00;
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

/// [`CTLR`]: Group 0 on.
pub const CTLR_GROUP0: u32 = 1 << 0;
/// [`CTLR`]: Group 1 on.
pub const CTLR_GROUP1: u32 = 1 << 1;
/// [`CTLR`]: affinity routing.
pub const CTLR_ARE: u32 = 1 << 4;
/// [`CTLR`]: a write has not taken effect everywhere yet.
pub const CTLR_RWP: u32 = 1 << 31;

/// INTIDs from here on mean that there is no interrupt.
pub const SPECIAL: u32 = 1020;
/// Priority that [`init`] gives to everything.
pub const PRIORITY: u8 = 0xa0;

static GICD: AtomicUsize = AtomicUsize::new(0);
static GICR: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn set_bases(gicd: usize, gicr: usize) {
    GICD.store(gicd, Relaxed);
    GICR.store(gicr, Relaxed);
}

/// Address of the distributor.
pub fn distributor() -> usize {
    GICD.load(Relaxed)
}

/// Address of the redistributor of this CPU (the first one: guests have one CPU).
pub fn redistributor() -> usize {
    GICR.load(Relaxed)
}

/// Address of the frame that holds the registers of `intid`.
fn frame(intid: u32) -> usize {
    if intid < 32 {
        redistributor() + SGI_FRAME
    } else {
        distributor()
    }
}

/// Address of the 32-bit register with the bit of `intid`, in the bank at `register`.
pub fn word(register: usize, intid: u32) -> usize {
    frame(intid) + register + intid as usize / 32 * 4
}

/// Whether the bit of `intid` is set in the bank at `register`.
pub fn bit(register: usize, intid: u32) -> bool {
    read32(word(register, intid)) & (1 << (intid % 32)) != 0
}

/// Writes a word in which only the bit of `intid` is set: what set and clear registers want.
pub fn set(register: usize, intid: u32) {
    write32(word(register, intid), 1 << (intid % 32));
}

/// Brings everything to a known state: all interrupts off, Group 1, priority [`PRIORITY`], none pending
/// or active; affinity routing; CPU interface open for all priorities.
pub fn init() {
    let (gicd, gicr) = (distributor(), redistributor());
    write32(gicd + CTLR, CTLR_ARE);
    wait_distributor();
    write32(gicr + GICR_WAKER, 0);
    while read32(gicr + GICR_WAKER) & 4 != 0 {}
    for intid in (0..interrupts()).step_by(32) {
        for register in [ICENABLER, ICPENDR, ICACTIVER, IGROUPR] {
            write32(word(register, intid), u32::MAX);
        }
        for offset in (0..32).step_by(4) {
            let four = frame(intid) + IPRIORITYR + intid as usize + offset;
            write32(four, u32::from_ne_bytes([PRIORITY; 4]));
        }
    }
    let here = affinity();
    for intid in 32..interrupts() {
        write64(gicd + IROUTER + 8 * intid as usize, here);
    }
    wait_redistributor();
    write32(gicd + CTLR, CTLR_ARE | CTLR_GROUP1);
    wait_distributor();
    init_cpu_interface();
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

/// INTIDs that the distributor has, SGIs and PPIs included.
pub fn interrupts() -> u32 {
    (32 * ((read32(distributor() + TYPER) & 31) + 1)).min(1020)
}

/// Affinity of this CPU as GICD_IROUTER wants it.
pub fn affinity() -> u64 {
    mrs!("mpidr_el1") & 0xff_00ff_ffff
}

/// Affinity that the redistributor says it serves, packed in 32 bits.
pub fn redistributor_affinity() -> u32 {
    (read64(redistributor() + GICR_TYPER) >> 32) as u32
}

/// Waits until writes to the distributor have taken effect.
pub fn wait_distributor() {
    while read32(distributor() + CTLR) & CTLR_RWP != 0 {}
}

/// Waits until writes to the redistributor have taken effect.
pub fn wait_redistributor() {
    while read32(redistributor() + CTLR) & (1 << 3) != 0 {}
}

/// Enables an interrupt.
pub fn enable(intid: u32) {
    set(ISENABLER, intid);
}

/// Disables an interrupt, and waits until that is so.
pub fn disable(intid: u32) {
    set(ICENABLER, intid);
    if intid < 32 {
        wait_redistributor()
    } else {
        wait_distributor()
    }
}

/// Sets the priority of an interrupt; 0 is the most urgent.
pub fn set_priority(intid: u32, priority: u8) {
    write8(frame(intid) + IPRIORITYR + intid as usize, priority);
}

/// Takes the most urgent pending interrupt; [`SPECIAL`] or more if there is none.
#[inline(always)]
pub fn acknowledge() -> u32 {
    let intid = mrs!("icc_iar1_el1") as u32;
    dsb();
    intid
}

/// Ends an interrupt (or, in EOImode 1, drops its priority only).
#[inline(always)]
pub fn end(intid: u32) {
    msr!("icc_eoir1_el1", intid.into());
    isb();
}

/// Deactivates an interrupt in EOImode 1.
pub fn deactivate(intid: u32) {
    msr!("icc_dir_el1", intid.into());
    isb();
}

/// Value of ICC_SGI1R_EL1 that sends SGI `intid` to this CPU.
pub fn sgi_to_self(intid: u32) -> u64 {
    let here = affinity();
    let (aff0, aff1) = (here & 0xff, (here >> 8) & 0xff);
    let (aff2, aff3) = ((here >> 16) & 0xff, here >> 32);
    let target = 1 << (aff0 & 15) | (aff0 >> 4) << 44;
    target | aff1 << 16 | u64::from(intid) << 24 | aff2 << 32 | aff3 << 48
}

/// Sends an SGI to this CPU.
#[inline(always)]
pub fn send_to_self(intid: u32) {
    msr!("icc_sgi1r_el1", sgi_to_self(intid));
    isb();
}

/// SGIs that are pending, one bit each.
pub fn pending_sgis() -> u32 {
    read32(word(ISPENDR, 0)) & 0xffff
}

/// Priority of what is being handled; 0xff if nothing is.
pub fn running_priority() -> u8 {
    mrs!("icc_rpr_el1") as u8
}

/// Most urgent pending interrupt, without taking it.
pub fn most_urgent() -> u32 {
    mrs!("icc_hppir1_el1") as u32
}

/// Sets the priority mask: only interrupts with a smaller number are signalled.
pub fn set_mask(priority: u8) {
    msr!("icc_pmr_el1", priority.into());
    isb();
}

/// Sets the binary point of Group 1: which bits of a priority decide about pre-emption.
pub fn set_binary_point(point: u8) {
    msr!("icc_bpr1_el1", point.into());
    isb();
}

/// EOImode 1: EOI drops the priority, and [`deactivate`] is a step of its own.
pub fn split_end(split: bool) {
    msr!("icc_ctlr_el1", u64::from(split) << 1);
    isb();
}
