//! The interrupt controller, a GICv2 (IHI 0048B) or a GICv3 (IHI 0069H): the device tree says which.
//! Programs that do not care use what is in this file; [`v2`] and [`v3`] have what differs.

pub mod v2;
pub mod v3;

use crate::board::Board;
use crate::cpu;
use crate::mmio::{read32, write8, write32, write64};
use crate::sysreg::{dsb, isb};
use crate::timer;
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
/// GICv2: targets, 8 bits for each interrupt.
pub const ITARGETSR: usize = 0x0800;
/// Triggers: 2 bits for each interrupt.
pub const ICFGR: usize = 0x0c00;

/// INTIDs from here on mean that there is no interrupt.
pub const SPECIAL: u32 = 1020;
/// Priority that [`init`] gives to everything.
pub const PRIORITY: u8 = 0xa0;

static VERSION: AtomicUsize = AtomicUsize::new(3);
static GICD: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn set_board(board: &Board) {
    VERSION.store(board.gic_version, Relaxed);
    GICD.store(board.gicd.base, Relaxed);
    v2::set_base(board.gicc.base);
    v3::set_bases(board.gicr);
}

/// Version of the architecture: 2 or 3.
#[inline(always)]
pub fn version() -> usize {
    VERSION.load(Relaxed)
}

#[inline(always)]
fn is_v2() -> bool {
    version() == 2
}

/// Address of the distributor.
#[inline(always)]
pub fn distributor() -> usize {
    GICD.load(Relaxed)
}

/// Address of the frame that holds the registers of `intid`, of the private ones those of this CPU.
pub fn frame(intid: u32) -> usize {
    if intid < 32 && !is_v2() {
        v3::redistributor() + v3::SGI_FRAME
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

/// Brings everything to a known state: all interrupts off, priority [`PRIORITY`], none pending or
/// active, SPIs routed to this CPU; in the group that brings an IRQ; CPU interface open for all
/// priorities.
pub fn init() {
    close();
    for intid in (32..interrupts()).step_by(32) {
        quiet(intid);
    }
    for intid in 32..interrupts() {
        route(intid, cpu::number());
    }
    init_cpu();
    open();
}

/// [`init`] for the private interrupts of this CPU and its CPU interface.
pub fn init_cpu() {
    if !is_v2() {
        v3::wake();
    }
    quiet(0);
    wait();
    if is_v2() {
        v2::init_cpu_interface();
    } else {
        v3::init_cpu_interface();
    }
}

/// Lets everything come, without clearing anything first: what comes is what somebody has left. For the
/// private interrupts of this CPU; with `all`, for SPIs too, which go to this CPU.
pub fn expose(all: bool) {
    if !is_v2() {
        v3::wake();
    }
    let last = if all { interrupts() } else { 32 };
    for first in (0..last).step_by(32) {
        write32(word(IGROUPR, first), if is_v2() { 0 } else { u32::MAX });
        if first >= 32 {
            (first..first + 32).for_each(|intid| route(intid, cpu::number()));
        }
        write32(word(ISENABLER, first), u32::MAX);
    }
    wait();
    if is_v2() {
        v2::init_cpu_interface();
    } else {
        v3::init_cpu_interface();
    }
    open();
}

/// The distributor forwards nothing.
pub fn close() {
    let rest = if is_v2() { 0 } else { v3::CTLR_ARE };
    write32(distributor() + CTLR, rest);
    wait();
}

/// The distributor forwards interrupts.
pub fn open() {
    let enable = if is_v2() {
        v2::CTLR_GROUP0
    } else {
        v3::CTLR_ARE | v3::CTLR_GROUP1
    };
    write32(distributor() + CTLR, enable);
    wait();
}

/// Whether the distributor is to forward interrupts.
pub fn is_open() -> bool {
    let enable = if is_v2() {
        v2::CTLR_GROUP0
    } else {
        v3::CTLR_GROUP1
    };
    read32(distributor() + CTLR) & enable != 0
}

/// Turns the 32 interrupts from `first` on off and gives them the usual priority and group.
fn quiet(first: u32) {
    for register in [ICENABLER, ICPENDR, ICACTIVER] {
        write32(word(register, first), u32::MAX);
    }
    // GICv2: Group 0 brings an IRQ, as long as the CPU interface does not make it a FIQ.
    write32(word(IGROUPR, first), if is_v2() { 0 } else { u32::MAX });
    for offset in (0..32).step_by(4) {
        let four = frame(first) + IPRIORITYR + first as usize + offset;
        write32(four, u32::from_ne_bytes([PRIORITY; 4]));
    }
}

/// INTIDs that the distributor has, SGIs and PPIs included.
pub fn interrupts() -> u32 {
    (32 * ((read32(distributor() + TYPER) & 31) + 1)).min(1020)
}

/// Waits until writes to the distributor and to this CPU's private registers have taken effect.
pub fn wait() {
    if is_v2() {
        // No such register: a read behind the write is all there is.
        read32(distributor() + CTLR);
    } else {
        while read32(distributor() + CTLR) & v3::CTLR_RWP != 0 {}
        while read32(v3::redistributor() + CTLR) & v3::GICR_RWP != 0 {}
    }
}

/// Enables an interrupt.
pub fn enable(intid: u32) {
    set(ISENABLER, intid);
}

/// Disables an interrupt, and waits until that is so.
pub fn disable(intid: u32) {
    set(ICENABLER, intid);
    wait();
}

/// Sets the priority of an interrupt; 0 is the most urgent.
pub fn set_priority(intid: u32, priority: u8) {
    write8(frame(intid) + IPRIORITYR + intid as usize, priority);
}

/// An interrupt is signalled by an edge (else by a level).
pub fn set_edge(intid: u32, edge: bool) {
    let address = frame(intid) + ICFGR + intid as usize / 16 * 4;
    let bit = 2 << (intid % 16 * 2);
    let others = read32(address) & !bit;
    write32(address, if edge { others | bit } else { others });
}

/// Sends an SPI to a CPU of this machine.
pub fn route(intid: u32, cpu: usize) {
    if is_v2() {
        write8(distributor() + ITARGETSR + intid as usize, 1 << cpu);
    } else {
        let at = distributor() + v3::IROUTER + 8 * intid as usize;
        write64(at, cpu::affinity(cpu));
    }
}

/// Result of an acknowledge: to be ended, in EOImode 1 to be deactivated as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken(pub u32);

impl Taken {
    /// Number of the interrupt; [`SPECIAL`] or more if there was none.
    #[inline(always)]
    pub fn intid(self) -> u32 {
        // GICv3 has 24 bits; no guest of this project has more than 1020 interrupts.
        if is_v2() { self.0 & 0x3ff } else { self.0 }
    }

    /// GICv2: the CPU that sent an SGI.
    pub fn source(self) -> usize {
        (self.0 >> 10 & 7) as usize
    }

    /// Whether there was no interrupt to take.
    #[inline(always)]
    pub fn is_none(self) -> bool {
        self.intid() >= SPECIAL
    }
}

/// Takes the most urgent pending interrupt.
#[inline(always)]
pub fn acknowledge() -> Taken {
    let taken = if is_v2() {
        read32(v2::cpu_interface() + v2::IAR)
    } else {
        mrs!("icc_iar1_el1") as u32
    };
    dsb();
    Taken(taken)
}

/// Ends an interrupt (or, in EOImode 1, drops its priority only).
#[inline(always)]
pub fn end(taken: Taken) {
    if is_v2() {
        write32(v2::cpu_interface() + v2::EOIR, taken.0);
        look_at_timer(taken);
    } else {
        msr!("icc_eoir1_el1", taken.0.into());
        isb();
    }
}

/// Deactivates an interrupt in EOImode 1.
pub fn deactivate(taken: Taken) {
    if is_v2() {
        write32(v2::cpu_interface() + v2::DIR, taken.0);
        look_at_timer(taken);
    } else {
        msr!("icc_dir_el1", taken.0.into());
        isb();
    }
}

/// Has QEMU look at the line of the timer again, whose interrupt was ended. If it rose between the handler's setting the timer and
/// ending the interrupt, because the host or another CPU's turn took the time in between, QEMU's GICv2 says nothing until some
/// line moves: the guest would sleep for good.
#[inline(always)]
fn look_at_timer(taken: Taken) {
    if taken.intid() == timer::INTID {
        timer::move_line();
    }
}

/// Sends an SGI to the CPUs of this machine whose bits are set.
#[inline(always)]
pub fn send(intid: u32, cpus: u8) {
    // What was written before the SGI is there when it arrives.
    dsb();
    if is_v2() {
        write32(distributor() + v2::SGIR, u32::from(cpus) << 16 | intid);
    } else {
        msr!("icc_sgi1r_el1", v3::sgi(intid, cpus));
        isb();
    }
}

/// Sends an SGI to all CPUs but this one.
pub fn send_to_others(intid: u32) {
    dsb();
    if is_v2() {
        write32(distributor() + v2::SGIR, 1 << 24 | intid);
    } else {
        msr!("icc_sgi1r_el1", u64::from(intid) << 24 | 1 << 40);
        isb();
    }
}

/// Sends an SGI to this CPU.
#[inline(always)]
pub fn send_to_self(intid: u32) {
    send(intid, 1 << cpu::number());
}

/// SGIs of this CPU that are pending, one bit each.
pub fn pending_sgis() -> u32 {
    read32(word(ISPENDR, 0)) & 0xffff
}

/// Makes an interrupt pending by hand; an SGI of GICv2 as if this CPU had sent it.
pub fn set_pending(intid: u32) {
    if is_v2() && intid < 16 {
        let at = distributor() + v2::SPENDSGIR + intid as usize;
        write8(at, 1 << cpu::number());
    } else {
        set(ISPENDR, intid);
    }
}

/// Takes pending away by hand; of an SGI of GICv2 from all senders.
pub fn clear_pending(intid: u32) {
    if is_v2() && intid < 16 {
        write8(distributor() + v2::CPENDSGIR + intid as usize, 0xff);
    } else {
        set(ICPENDR, intid);
    }
}

/// Returns the running priority; 0xff if no interrupt is being handled.
pub fn running_priority() -> u8 {
    if is_v2() {
        read32(v2::cpu_interface() + v2::RPR) as u8
    } else {
        mrs!("icc_rpr_el1") as u8
    }
}

/// Most urgent pending interrupt, without taking it.
pub fn most_urgent() -> u32 {
    if is_v2() {
        read32(v2::cpu_interface() + v2::HPPIR) & 0x3ff
    } else {
        mrs!("icc_hppir1_el1") as u32
    }
}

/// Sets the priority mask: only interrupts with a smaller number are signalled.
pub fn set_mask(priority: u8) {
    if is_v2() {
        write32(v2::cpu_interface() + v2::PMR, priority.into());
        read32(v2::cpu_interface() + v2::PMR);
    } else {
        msr!("icc_pmr_el1", priority.into());
        isb();
    }
}

/// The priority mask.
pub fn mask() -> u8 {
    if is_v2() {
        read32(v2::cpu_interface() + v2::PMR) as u8
    } else {
        mrs!("icc_pmr_el1") as u8
    }
}

/// Sets the binary point so that the priority bits above `lowest` decide about pre-emption; gives
/// what it became. The two versions count differently: in GICv2's Group 0 a value of 0 leaves 7 bits,
/// in GICv3's Group 1 a value of 1 does.
pub fn set_binary_point(lowest: u8) -> u8 {
    if is_v2() {
        write32(
            v2::cpu_interface() + v2::BPR,
            lowest.saturating_sub(1).into(),
        );
    } else {
        msr!("icc_bpr1_el1", lowest.into());
        isb();
    }
    binary_point()
}

/// Returns the binary point, counted as [`set_binary_point`] does.
pub fn binary_point() -> u8 {
    if is_v2() {
        read32(v2::cpu_interface() + v2::BPR) as u8 + 1
    } else {
        mrs!("icc_bpr1_el1") as u8
    }
}

/// EOImode 1: EOI drops the priority, and [`deactivate`] is a step of its own.
pub fn split_end(split: bool) {
    if is_v2() {
        let enable = v2::CTLR_GROUP0 | u32::from(split) << 9;
        write32(v2::cpu_interface() + v2::GICC_CTLR, enable);
    } else {
        msr!("icc_ctlr_el1", u64::from(split) << 1);
        isb();
    }
}
