//! GICv2 (IHI 0048B.b): everything by memory-mapped frames. The board has one frame of each kind,
//! which is banked where the pCPUs' registers differ, so all pCPUs map the frames at the same
//! address.
//!
//! On a board with the Security Extensions, EL2 sees the Non-secure half: bit 0 of GICD_CTLR and
//! GICC_CTLR then enables Group 1, and firmware has put the interrupts there. Without the Security
//! Extensions the same bit enables Group 0, in which all interrupts are after reset.

use core::sync::atomic::{
    AtomicU8, AtomicU32,
    Ordering::{Relaxed, SeqCst},
    fence,
};

use bulkhead_abi::plan::{Board, PAGE};
use bulkhead_core::monitor::Gate;
use bulkhead_core::vgic::{Version, gich};

use super::super::layout::{self, shared};
use super::super::mmio::Registers;
use super::super::mmu::{self, CopyWindows, Frame};
use super::registers::{
    HCR_ENABLE, SPECIAL, Taken, VirtualInterface, bank, running, set_target, settled, silence,
    target, words,
};
use super::spis;

/// The version of the architecture.
pub const VERSION: u32 = 2;
/// The version of the architecture, as the vGIC's type.
pub const VIRTUAL: Version = Version::V2;
/// GICH_HCR while no maintenance interrupt is asked for: En. The page of GICV_DIR is mapped
/// nowhere, so the guest's writes to it trap.
pub(super) const CONTROL: u32 = HCR_ENABLE;

/// Distributor, CPU interface, virtual interface control.
pub(super) const GICD: Registers = mmu::shared_frame(shared::GICD, shared::GICD_PAGES);
pub(super) const GICC: Registers = mmu::shared_frame(shared::GICC, shared::GICC_PAGES);
const GICH: Registers = mmu::shared_frame(shared::GICH, shared::GICH_PAGES);

/// `GICD_ITARGETSR`: a byte for each interrupt, with a bit for each CPU interface.
const ITARGETSR: u64 = 0x800;
pub(super) const SGIR: u64 = 0xf00;
pub(super) const CPENDSGIR: u64 = 0xf10;

pub(super) const GICC_CTLR: u64 = 0x0;
pub(super) const GICC_PMR: u64 = 0x4;
pub(super) const GICC_BPR: u64 = 0x8;
const GICC_IAR: u64 = 0xc;
const GICC_EOIR: u64 = 0x10;
const GICC_HPPIR: u64 = 0x18;
pub(super) const GICC_DIR: u64 = 0x1000;
/// `GICC_CTLR`: on; EOIR drops the priority, DIR or the guest deactivates (EOImode, EOImodeNS).
pub(super) const ON_SPLIT: u32 = 1 | 1 << 9;

const GICH_HCR: u64 = 0x0;
const GICH_VTR: u64 = 0x4;
const GICH_VMCR: u64 = 0x8;
const GICH_ELRSR0: u64 = 0x30;
const GICH_APR: u64 = 0xf0;
const GICH_LR: u64 = 0x100;

/// `GICC_IIDR`, which tells copies of a page from other pages of a CPU interface: only copies have
/// the same value.
const GICC_IIDR: u64 = 0xfc;
/// The size of a frame in which each of the two pages may be repeated sixteen times, so that each
/// has 64 KiB to itself, as a GIC-400 can be wired.
const COPIES: u64 = 0x2_0000;
/// The last copy of the first page in such a frame. The first copy of the second page follows it.
const LAST_COPY: u64 = 0xf000;

/// Returns the address at which the two pages of the CPU interface are adjacent.
fn interface(copy_windows: &mut CopyWindows, board: &Board) -> u64 {
    if board.gicc_size < COPIES {
        return board.gicc;
    }
    let all = copy_windows.registers(layout::FRAMES.wrapping_add(1), board.gicc, COPIES);
    let copied = all.read(GICC_IIDR) == all.read(LAST_COPY.wrapping_add(GICC_IIDR));
    board.gicc.wrapping_add(if copied { LAST_COPY } else { 0 })
}

/// The pCPU of each SPI, plus one; 0 for none. Recorded because the bit of a pCPU is not known
/// before it has started.
static ROUTES: [AtomicU8; SPECIAL as usize] = [const { AtomicU8::new(0) }; SPECIAL as usize];
/// Those that have one, a bit for each: few of them do.
static ROUTED: [AtomicU32; 32] = [const { AtomicU32::new(0) }; 32];

/// Resets the distributor: all SPIs disabled, routed to no pCPU. From now on all maps have the
/// frames.
pub fn start_distributor(copy_windows: &mut CopyWindows, board: &Board) -> Registers {
    let gicc = interface(copy_windows, board);
    mmu::share_frame(shared::GICD, board.gicd, shared::GICD_PAGES);
    mmu::share_frame(shared::GICC, gicc, shared::GICC_PAGES);
    mmu::share_frame(shared::GICH, board.gich, shared::GICH_PAGES);
    GICD.write(0, 0);
    for word in 1..words(GICD) {
        spis::look(GICD, word);
        silence(GICD, 0, word);
        GICD.write(bank::GROUP.wrapping_add(word.wrapping_mul(4)), 0);
        GICD.fill(ITARGETSR.wrapping_add(word.wrapping_mul(32)), 8, 0);
    }
    GICD.write(0, 1);
    GICD
}

/// Routes an SPI to a pCPU: at once, or when the pCPU starts.
pub fn route(gicd: Registers, intid: u32, pcpu: usize) {
    let Some(place) = ROUTES.get(intid as usize) else {
        return;
    };
    place.store((pcpu as u8).wrapping_add(1), Relaxed);
    if let Some(routed) = ROUTED.get(intid as usize / 32) {
        routed.fetch_or(1 << (intid % 32), Relaxed);
    }
    // Either this sees the target that the pCPU has just learnt, or the pCPU sees the route.
    fence(SeqCst);
    let bit = target(pcpu) >> 16;
    if bit != 0 {
        gicd.write8(ITARGETSR.wrapping_add(u64::from(intid)), bit as u8);
    }
}

/// Returns no frames: a private map has nothing of the GIC (see [`start_distributor`]).
pub fn private_frames(_: &mut CopyWindows, _: &Board, _: u64) -> Option<[Frame; 0]> {
    Some([])
}

/// The frames, which all pCPUs map at the same addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frames;

impl Frames {
    pub(super) const fn of(_: usize) -> Self {
        Self
    }

    pub(super) const fn gicd(&self) -> Registers {
        GICD
    }

    /// Returns the frame and the offset of the word of a bank that has an INTID. The first word is
    /// banked for each pCPU.
    pub(super) fn bank(&self, bank: u64, intid: u32) -> (Registers, u64) {
        (
            GICD,
            bank.wrapping_add(u64::from(intid / 32).wrapping_mul(4)),
        )
    }

    /// Waits until the writes about an INTID have reached the distributor.
    pub(super) fn settle(&self, intid: u32) {
        let (frame, at) = self.bank(bank::ENABLE, intid);
        settled(|| frame.read(at) & 1 << (intid % 32) == 0);
    }

    /// Disables this pCPU's SGIs and PPIs except those in `wanted`. Learns by which bit the
    /// distributor knows this pCPU, and routes the SPIs of this pCPU to it.
    pub(super) fn start(&self, index: usize, wanted: u32) {
        silence(GICD, 0, 0);
        GICD.fill(CPENDSGIR, 4, u32::MAX);
        GICD.write(bank::GROUP, 0);
        GICD.write(bank::ENABLE, wanted);
        // Byte 0 belongs to SGI 0, whose only target is this pCPU; it is 0 on a board with one CPU.
        let bit = (GICD.read(ITARGETSR) & 0xff).max(1);
        set_target(index, u64::from(bit) << 16);
        fence(SeqCst);
        let own = (index as u8).wrapping_add(1);
        for (word, routed) in (0u32..).zip(&ROUTED) {
            let mut rest = routed.load(Relaxed);
            while rest != 0 {
                let intid = word.wrapping_mul(32).wrapping_add(rest.trailing_zeros());
                rest &= rest.wrapping_sub(1);
                let place = ROUTES.get(intid as usize);
                if place.is_some_and(|place| place.load(Relaxed) == own) {
                    route(GICD, intid, index);
                }
            }
        }
    }
}

/// Starts this pCPU's CPU interface and returns how many list registers its virtual interface has.
pub(super) fn start_cpu_interface() -> u32 {
    GICC.write(GICC_PMR, 0xff);
    GICC.write(GICC_BPR, 0);
    GICC.write(GICC_CTLR, ON_SPLIT);
    (GICH.read(GICH_VTR) & 63).saturating_add(1)
}

/// Resets the virtual interface, which has this many list registers: nothing enabled, pending or
/// active.
pub fn reset_virtual_interface(list_registers: u32) {
    GICH.write(GICH_VMCR, 0);
    GICH.write(GICH_HCR, CONTROL);
    GICH.write(GICH_APR, 0);
    for n in 0..list_registers {
        set_list_register(n, 0);
    }
}

/// Whether [`save_fast`] saves the whole virtual interface.
pub(super) const fn is_fastpath(list_registers: u32) -> bool {
    list_registers == 4
}

/// Saves GICH_HCR, GICH_VMCR, active priorities and list registers.
#[inline(always)]
pub(super) fn save_fast(to: &mut VirtualInterface) {
    to.control = GICH.read_relaxed_at::<GICH_HCR>() as u32;
    save_machine(to);
    // One by one: a loop takes longer than what it does.
    let [first, second, third, fourth, ..] = &mut to.list;
    *first = GICH.read_relaxed_at::<{ lr(0) }>();
    *second = GICH.read_relaxed_at::<{ lr(1) }>();
    *third = GICH.read_relaxed_at::<{ lr(2) }>();
    *fourth = GICH.read_relaxed_at::<{ lr(3) }>();
}

/// Saves the state of a virtual interface with any number of list registers, without GICH_HCR.
#[inline(never)]
pub(super) fn save_rest(to: &mut VirtualInterface, list_registers: u32) {
    save_machine(to);
    for (n, place) in (0..list_registers).zip(&mut to.list) {
        *place = word(n);
    }
}

#[inline(always)]
fn save_machine(to: &mut VirtualInterface) {
    to.machine = GICH.read_relaxed_at::<GICH_VMCR>() as u32;
    to.active[0] = GICH.read_relaxed_at::<GICH_APR>() as u32;
}

/// Restores the state that [`save_fast`] has saved.
#[inline(always)]
pub(super) fn restore_fast(from: &VirtualInterface) {
    restore_machine(from);
    let [first, second, third, fourth, ..] = from.list;
    GICH.write_at::<{ lr(0) }>(first as u32);
    GICH.write_at::<{ lr(1) }>(second as u32);
    GICH.write_at::<{ lr(2) }>(third as u32);
    GICH.write_at::<{ lr(3) }>(fourth as u32);
    set_control(from.control);
}

/// Restores the state that [`save_rest`] has saved.
#[inline(never)]
pub(super) fn restore_rest(from: &VirtualInterface, list_registers: u32) {
    restore_machine(from);
    for (n, value) in (0..list_registers).zip(&from.list) {
        set_word(n, *value);
    }
}

#[inline(always)]
fn restore_machine(from: &VirtualInterface) {
    GICH.write_at::<GICH_VMCR>(from.machine);
    GICH.write_at::<GICH_APR>(from.active[0]);
}

/// Offset of a list register.
const fn lr(n: u32) -> u64 {
    GICH_LR.wrapping_add((n as u64).wrapping_mul(4))
}

/// Reads a list register as it is.
#[inline(always)]
fn word(n: u32) -> u64 {
    GICH.read(GICH_LR.wrapping_add(u64::from(n).wrapping_mul(4)))
        .into()
}

/// Writes a list register as it was.
#[inline(always)]
fn set_word(n: u32, value: u64) {
    GICH.write(lr(n), value as u32);
}

/// Acknowledges the most urgent interrupt.
#[inline(always)]
pub fn acknowledge() -> Taken {
    Taken(GICC.read_at::<GICC_IAR>())
}

/// Returns the INTID of the most urgent interrupt that is pending on this pCPU, or one that no
/// interrupt has, with the sender of an SGI above it; does not acknowledge it.
#[inline(always)]
pub fn most_urgent() -> u32 {
    GICC.read(GICC_HPPIR)
}

/// Drops the running priority; the interrupt stays active.
#[inline(always)]
pub fn drop_priority(taken: Taken) {
    GICC.write_at::<GICC_EOIR>(taken.0);
}

/// Deactivates an interrupt that was acknowledged.
#[inline(always)]
pub fn deactivate(taken: Taken) {
    GICC.write_at::<GICC_DIR>(taken.0);
}

/// Returns no interrupt for a FIQ: the CPU interface signals none (GICC_CTLR.FIQEn is 0).
pub fn acknowledge_group0() -> Taken {
    Taken(SPECIAL)
}

/// Sends an SGI; `target` is GICD_SGIR.CPUTargetList at its position in the register.
#[inline(always)]
pub(super) fn send(sgi: u32, target: u64) {
    GICD.write(SGIR, target as u32 | sgi);
}

/// Sends an SGI: [`send`]. No SPI replaces an SGI on a GICv2; returns `true`.
#[inline(always)]
pub(super) fn send_sgi(sgi: u32, target: u64) -> bool {
    send(sgi, target);
    true
}

/// Writes the list register of the virtual timer.
#[inline(always)]
pub fn set_timer_register(value: u64) {
    GICH.write(GICH_LR, gich::from_wide(value));
}

/// Returns the list registers that are empty, one bit for each.
#[inline(always)]
pub fn empty_list_registers() -> u32 {
    GICH.read(GICH_ELRSR0)
}

/// Reads a list register, in its 64-bit form.
#[inline(always)]
pub fn list_register(n: u32) -> u64 {
    gich::to_wide(word(n) as u32)
}

/// Writes a list register.
#[inline(always)]
pub fn set_list_register(n: u32, value: u64) {
    GICH.write(lr(n), gich::from_wide(value));
}

/// Returns the mask, priorities and group enables of the guest's CPU interface (GICH_VMCR,
/// GICH_APR). The groups that the distributor forwards are left 0.
pub fn gate() -> Gate {
    let vmcr = GICH.read(GICH_VMCR);
    Gate {
        mask: u64::from(vmcr >> 27 << 3),
        running: running(GICH.read(GICH_APR)),
        groups: u64::from(vmcr & 0b11),
        forwarded: 0,
        // VMFIQEn
        fiq: u64::from(vmcr >> 3 & 1),
    }
}

/// Reads GICH_HCR.
#[inline(always)]
pub(super) fn control() -> u32 {
    GICH.read(GICH_HCR)
}

/// Writes GICH_HCR.
#[inline(always)]
pub(super) fn set_control(value: u32) {
    GICH.write(GICH_HCR, value);
}

const _: () = assert!(shared::GICC_PAGES as u64 * PAGE > GICC_DIR);

/// Returns the groups that the guest's CPU interface signals, one bit for each (GICH_VMCR).
#[inline(always)]
pub(super) fn virtual_groups() -> u32 {
    GICH.read(GICH_VMCR) & 0b11
}

/// Whether the guest's CPU interface is in EOImode 1 (GICH_VMCR.VEM): an interrupt stays active
/// after its end until the guest writes to GICV_DIR.
#[inline(always)]
pub fn ends_in_two_steps() -> bool {
    GICH.read(GICH_VMCR) & 1 << 9 != 0
}
