//! GICv3 (IHI 0069H): the CPU interface and the virtual interface by system registers, the
//! distributor and the redistributors by their frames.

use core::mem::offset_of;

use bulkhead_abi::plan::{Board, PAGE};
use bulkhead_core::gppt::TWO_STEPS;
use bulkhead_core::monitor::Gate;
use bulkhead_core::vgic::Version;

use super::super::layout::{self, private};
use super::super::mmio::Registers;
use super::super::mmu::{self, CopyWindows, Frame};
use super::super::plan::plan;
use super::super::sysreg::{isb, read, write};
use super::by_spi::{self, BY_SPI};
use super::registers::{
    HCR_ENABLE, Taken, VirtualInterface, bank, running, set_target, settled, silence, words,
};
use super::spis;

/// The version of the architecture.
pub const VERSION: u32 = 3;
/// The version of the architecture, as the vGIC's type.
pub const VIRTUAL: Version = Version::V3;
/// ICH_HCR_EL2 while no maintenance interrupt is asked for: En, and TDIR, by which the guest's
/// writes to ICC_DIR_EL1 trap.
pub(super) const CONTROL: u32 = HCR_ENABLE | 1 << 14;
/// The size of one redistributor in bytes.
const GICR_STRIDE: u64 = 0x2_0000;
/// The number of redistributors that are searched for that of a pCPU.
const MOST_REDISTRIBUTORS: usize = 256;
const SGI_FRAME: u64 = 0x1_0000;
/// `GICD_CTLR`: affinity routing, Group 1; RWP says that a write is not yet in effect.
const ARE_GROUP1: u32 = 1 << 4 | 1 << 1;
const RWP: u32 = 1 << 31;
/// `GICR_CTLR.RWP`.
const GICR_RWP: u32 = 1 << 3;
const IROUTER: u64 = 0x6000;

/// Resets the distributor: all SPIs disabled, in Group 1, routed to no pCPU. Returns a copy window
/// in the boot map.
pub fn start_distributor(copy_windows: &mut CopyWindows, board: &Board) -> Registers {
    let block = layout::FRAMES.wrapping_add(1);
    let gicd = copy_windows.registers(block, board.gicd, board.gicd_size);
    gicd.write(0, 0);
    settled(|| gicd.read(0) & RWP == 0);
    for word in 1..words(gicd) {
        spis::look(gicd, word);
        silence(gicd, 0, word);
        gicd.write(bank::GROUP.wrapping_add(word.wrapping_mul(4)), u32::MAX);
    }
    gicd.write(0, ARE_GROUP1);
    settled(|| gicd.read(0) & RWP == 0);
    for (index, pcpu) in plan().pcpus.iter().enumerate() {
        let target = match pcpu.call_spi {
            0 => sgi_target(pcpu.mpidr),
            first => by_spi::by_spi(index, first),
        };
        set_target(index, target);
    }
    gicd
}

/// Returns the target of an SGI in the fields of ICC_SGI1R_EL1.
pub(super) const fn sgi_target(mpidr: u64) -> u64 {
    let (aff3, aff2, aff1, aff0) = (
        mpidr >> 32 & 0xff,
        mpidr >> 16 & 0xff,
        mpidr >> 8 & 0xff,
        mpidr & 0xff,
    );
    aff3 << 48 | aff2 << 32 | aff1 << 16 | 1 << (aff0 & 15) | (aff0 / 16) << 44
}

/// Routes an SPI to a pCPU.
pub fn route(gicd: Registers, intid: u32, pcpu: usize) {
    if let Some(pcpu) = plan().pcpus.get(pcpu) {
        gicd.write64(
            IROUTER.wrapping_add(u64::from(intid).wrapping_mul(8)),
            pcpu.mpidr,
        );
    }
}

/// Returns the frames of the GIC in the private map of a pCPU: the distributor, and the
/// redistributor that names the pCPU in its GICR_TYPER. `None` if the board has no such
/// redistributor.
pub fn private_frames(
    copy_windows: &mut CopyWindows,
    board: &Board,
    mpidr: u64,
) -> Option<[Frame; 2]> {
    let affinity = (mpidr >> 32 & 0xff) << 24 | mpidr & 0xff_ffff;
    let frames = (0..board.gicr_size / GICR_STRIDE)
        .map(|n| board.gicr.wrapping_add(n.wrapping_mul(GICR_STRIDE)));
    for pa in frames.take(MOST_REDISTRIBUTORS) {
        let frame = copy_windows.registers(layout::FRAMES.wrapping_add(1), pa, GICR_STRIDE);
        if frame.read64(8) >> 32 == affinity {
            let gicd = Frame {
                page: private::GICD,
                pa: board.gicd,
                pages: private::GICD_PAGES,
            };
            let gicr = Frame {
                page: private::GICR,
                pa,
                pages: private::GICR_PAGES,
            };
            return Some([gicd, gicr]);
        }
    }
    None
}

/// The frames of the GIC in the private map of a pCPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frames {
    gicd: Registers,
    gicr: Registers,
    /// The second frame of the redistributor: SGIs and PPIs.
    private: Registers,
}

impl Frames {
    pub(super) fn of(index: usize) -> Self {
        let at =
            |page, pages: usize| mmu::private_frame(index, page, (pages as u64).wrapping_mul(PAGE));
        let gicr = at(private::GICR, private::GICR_PAGES);
        Self {
            gicd: at(private::GICD, private::GICD_PAGES),
            gicr,
            private: gicr.behind(SGI_FRAME),
        }
    }

    pub(super) const fn gicd(&self) -> Registers {
        self.gicd
    }

    pub(super) const fn gicr(&self) -> Registers {
        self.gicr
    }

    /// Returns the frame and the offset of the word of a bank that has an INTID.
    #[inline(always)]
    pub(super) fn bank(&self, bank: u64, intid: u32) -> (Registers, u64) {
        if intid < 32 {
            (self.private, bank)
        } else {
            (
                self.gicd,
                bank.wrapping_add(u64::from(intid / 32).wrapping_mul(4)),
            )
        }
    }

    /// Waits until the writes about an INTID are in effect.
    pub(super) fn settle(&self, intid: u32) {
        if intid < 32 {
            settled(|| self.gicr.read(0) & GICR_RWP == 0);
        } else {
            settled(|| self.gicd.read(0) & RWP == 0);
        }
    }

    /// Wakes this pCPU's redistributor and disables its interrupts except those in `wanted`.
    pub(super) fn start(&self, _index: usize, wanted: u32) {
        let gicr = self.gicr;
        gicr.write(0x14, gicr.read(0x14) & !2);
        settled(|| gicr.read(0x14) & 4 == 0);
        silence(gicr, SGI_FRAME, 0);
        gicr.write(SGI_FRAME + bank::GROUP, u32::MAX);
        self.settle(0);
        gicr.write(SGI_FRAME + bank::ENABLE, wanted);
    }
}

/// Starts this pCPU's CPU interface and returns how many list registers its virtual interface has.
pub(super) fn start_cpu_interface() -> u32 {
    // ICC_SRE_EL2: system registers here, no bypass. Enable is 0, so that a guest's accesses to
    // ICC_SRE_EL1 trap, where the implementation does not fix both (IHI 0069H, ICC_SRE_EL2): the
    // register is not part of a vCPU's state.
    write!("icc_sre_el2", 7);
    isb();
    // ICC_SRE_EL1: system registers, no bypass, which guests read and cannot change.
    write!("icc_sre_el1", 7);
    isb();
    // ICC_PMR_EL1: every priority.
    write!("icc_pmr_el1", 0xff);
    // ICC_CTLR_EL1.EOImode: EOIR drops the priority, DIR or the guest deactivates.
    write!("icc_ctlr_el1", 1 << 1);
    // ICC_IGRPEN1_EL1
    write!("icc_igrpen1_el1", 1);
    isb();
    // ICH_VTR_EL2.ListRegs
    ((read!("ich_vtr_el2") & 31) as u32).saturating_add(1)
}

/// Resets the virtual interface, which has this many list registers: nothing enabled, pending or
/// active.
pub fn reset_virtual_interface(list_registers: u32) {
    // ICH_VMCR_EL2, ICH_HCR_EL2
    write!("ich_vmcr_el2", 0);
    write!("ich_hcr_el2", u64::from(CONTROL));
    for n in 0..list_registers {
        set_list_register(n, 0);
    }
    // ICH_AP0R<n>_EL2, ICH_AP1R<n>_EL2: as many as ICH_VTR_EL2.PREbits asks for.
    write!("ich_ap0r0_el2", 0);
    write!("ich_ap1r0_el2", 0);
    if preemption_bits() >= 6 {
        write!("ich_ap0r1_el2", 0);
        write!("ich_ap1r1_el2", 0);
    }
    if preemption_bits() >= 7 {
        write!("ich_ap0r2_el2", 0);
        write!("ich_ap0r3_el2", 0);
        write!("ich_ap1r2_el2", 0);
        write!("ich_ap1r3_el2", 0);
    }
    isb();
}

/// Returns the number of priority bits that can pre-empt (ICH_VTR_EL2.PREbits).
fn preemption_bits() -> u64 {
    (read!("ich_vtr_el2") >> 26 & 7).saturating_add(1)
}

/// Whether [`save_fast`] saves the whole virtual interface.
pub(super) fn is_fastpath(list_registers: u32) -> bool {
    list_registers == 4 && preemption_bits() < 6
}

/// Saves ICH_HCR_EL2, ICH_VMCR_EL2, active priorities and list registers: in store pairs, which the
/// compiler would not form.
#[inline(always)]
pub(super) fn save_fast(to: &mut VirtualInterface) {
    // SAFETY: [R-SYSREG] reads registers and writes this structure, which has C's layout.
    unsafe {
        core::arch::asm!(
            "mrs {a}, ich_hcr_el2",
            "mrs {b}, ich_vmcr_el2",
            "stp {a:w}, {b:w}, [{to}, {control}]",
            "mrs {a}, ich_ap0r0_el2",
            "mrs {b}, ich_ap1r0_el2",
            "stp {a:w}, {b:w}, [{to}, {active}]",
            "mrs {a}, ich_lr0_el2",
            "mrs {b}, ich_lr1_el2",
            "stp {a}, {b}, [{to}, {list}]",
            "mrs {a}, ich_lr2_el2",
            "mrs {b}, ich_lr3_el2",
            "stp {a}, {b}, [{to}, {list} + 16]",
            a = out(reg) _,
            b = out(reg) _,
            to = in(reg) core::ptr::from_mut(to),
            control = const offset_of!(VirtualInterface, control),
            active = const offset_of!(VirtualInterface, active),
            list = const offset_of!(VirtualInterface, list),
            options(nostack, preserves_flags)
        );
    }
}

/// Saves the rest of the state of a virtual interface with any number of registers, without
/// ICH_HCR_EL2.
#[inline(never)]
pub(super) fn save_rest(to: &mut VirtualInterface, list_registers: u32) {
    to.machine = read!("ich_vmcr_el2") as u32;
    to.active[0] = read!("ich_ap0r0_el2") as u32;
    to.active[1] = read!("ich_ap1r0_el2") as u32;
    for (n, entry) in (0..list_registers).zip(&mut to.list) {
        *entry = any_list_register(n);
    }
    let bits = preemption_bits();
    if bits >= 6 {
        to.active[2] = read!("ich_ap0r1_el2") as u32;
        to.active[3] = read!("ich_ap1r1_el2") as u32;
    }
    if bits >= 7 {
        to.active[4] = read!("ich_ap0r2_el2") as u32;
        to.active[6] = read!("ich_ap0r3_el2") as u32;
        to.active[5] = read!("ich_ap1r2_el2") as u32;
        to.active[7] = read!("ich_ap1r3_el2") as u32;
    }
}

/// Restores the state that [`save_fast`] has saved.
#[inline(always)]
pub(super) fn restore_fast(from: &VirtualInterface) {
    // SAFETY: [R-SYSREG] the registers are those of the virtual interface, and the values were read
    // from them.
    unsafe {
        core::arch::asm!(
            "ldp {a:w}, {b:w}, [{from}, {active}]",
            "msr ich_ap0r0_el2, {a}",
            "msr ich_ap1r0_el2, {b}",
            "ldp {a}, {b}, [{from}, {list}]",
            "msr ich_lr0_el2, {a}",
            "msr ich_lr1_el2, {b}",
            "ldp {a}, {b}, [{from}, {list} + 16]",
            "msr ich_lr2_el2, {a}",
            "msr ich_lr3_el2, {b}",
            "ldp {a:w}, {b:w}, [{from}, {control}]",
            "msr ich_vmcr_el2, {b}",
            "msr ich_hcr_el2, {a}",
            a = out(reg) _,
            b = out(reg) _,
            from = in(reg) core::ptr::from_ref(from),
            control = const offset_of!(VirtualInterface, control),
            active = const offset_of!(VirtualInterface, active),
            list = const offset_of!(VirtualInterface, list),
            options(nostack, preserves_flags)
        );
    }
}

/// Restores the state that [`save_rest`] has saved.
#[inline(never)]
pub(super) fn restore_rest(from: &VirtualInterface, list_registers: u32) {
    write!("ich_vmcr_el2", u64::from(from.machine));
    write!("ich_ap0r0_el2", u64::from(from.active[0]));
    write!("ich_ap1r0_el2", u64::from(from.active[1]));
    for (n, value) in (0..list_registers).zip(&from.list) {
        set_any_list_register(n, *value);
    }
    let bits = preemption_bits();
    if bits >= 6 {
        write!("ich_ap0r1_el2", u64::from(from.active[2]));
        write!("ich_ap1r1_el2", u64::from(from.active[3]));
    }
    if bits >= 7 {
        write!("ich_ap0r2_el2", u64::from(from.active[4]));
        write!("ich_ap0r3_el2", u64::from(from.active[6]));
        write!("ich_ap1r2_el2", u64::from(from.active[5]));
        write!("ich_ap1r3_el2", u64::from(from.active[7]));
    }
}

/// Acknowledges the most urgent interrupt (ICC_IAR1_EL1).
#[inline(always)]
pub fn acknowledge() -> Taken {
    Taken(read!("icc_iar1_el1") as u32)
}

/// Returns the INTID of the most urgent interrupt that is pending on this pCPU, or one that no
/// interrupt has; does not acknowledge it (ICC_HPPIR1_EL1).
#[inline(always)]
pub fn most_urgent() -> u32 {
    read!("icc_hppir1_el1") as u32
}

/// Drops the running priority (ICC_EOIR1_EL1); the interrupt stays active.
#[inline(always)]
pub fn drop_priority(taken: Taken) {
    write!("icc_eoir1_el1", u64::from(taken.0));
}

/// Deactivates an interrupt that was acknowledged (ICC_DIR_EL1).
#[inline(always)]
pub fn deactivate(taken: Taken) {
    write!("icc_dir_el1", u64::from(taken.0));
}

/// Acknowledges the most urgent Group 0 interrupt and ends it (ICC_IAR0_EL1, ICC_EOIR0_EL1). With
/// EOImode 1, which a GPPT VM can set, deactivates it too.
pub fn acknowledge_group0() -> Taken {
    let taken = Taken(read!("icc_iar0_el1") as u32);
    if !taken.is_nothing() {
        write!("icc_eoir0_el1", u64::from(taken.0));
        if read!("icc_ctlr_el1") & TWO_STEPS != 0 {
            write!("icc_dir_el1", u64::from(taken.0));
        }
        isb();
    }
    taken
}

/// Sends an SGI (ICC_SGI1R_EL1), or the SPI that replaces it.
#[inline(always)]
pub(super) fn send(sgi: u32, target: u64) {
    if !send_sgi(sgi, target) {
        by_spi::call(sgi, target);
    }
}

/// Sends an SGI (ICC_SGI1R_EL1). Returns `false` without sending it if an SPI replaces it.
#[inline(always)]
pub(super) fn send_sgi(sgi: u32, target: u64) -> bool {
    if target & BY_SPI != 0 {
        return false;
    }
    write!("icc_sgi1r_el1", u64::from(sgi) << 24 | target);
    isb();
    true
}

/// Writes the list register of the virtual timer (ICH_LR0_EL2).
#[inline(always)]
pub fn set_timer_register(value: u64) {
    write!("ich_lr0_el2", value);
}

/// Returns the list registers that are empty, one bit for each (ICH_ELRSR_EL2).
#[inline(always)]
pub fn empty_list_registers() -> u32 {
    read!("ich_elrsr_el2") as u32
}

/// Returns the mask, priorities and group enables of the guest's CPU interface (ICH_VMCR_EL2,
/// ICH_AP0R0_EL2, ICH_AP1R0_EL2). The groups that the distributor forwards are left 0.
pub fn gate() -> Gate {
    let vmcr = read!("ich_vmcr_el2");
    let active = (read!("ich_ap0r0_el2") | read!("ich_ap1r0_el2")) as u32;
    Gate {
        mask: vmcr >> 24 & 0xff,
        running: running(active),
        groups: vmcr & 0b11,
        forwarded: 0,
        // With system registers Group 0 is always signalled as FIQ.
        fiq: 0b01,
    }
}

/// Reads ICH_HCR_EL2.
#[inline(always)]
pub(super) fn control() -> u32 {
    read!("ich_hcr_el2") as u32
}

/// Writes ICH_HCR_EL2.
#[inline(always)]
pub(super) fn set_control(value: u32) {
    write!("ich_hcr_el2", u64::from(value));
}

macro_rules! list_registers {
    ($($n:literal $name:literal),*) => {
        #[inline(never)]
        fn any_list_register(n: u32) -> u64 {
            match n { $($n => read!($name),)* _ => 0 }
        }

        #[inline(never)]
        fn set_any_list_register(n: u32, value: u64) {
            match n { $($n => write!($name, value),)* _ => {} }
        }
    };
}

/// Reads ICH_LR\<n\>_EL2.
#[inline(always)]
pub fn list_register(n: u32) -> u64 {
    any_list_register(n)
}

/// Writes ICH_LR\<n\>_EL2. The fast paths name the first list register after that of the virtual
/// timer, so that this is one instruction there.
#[inline(always)]
pub fn set_list_register(n: u32, value: u64) {
    if n == 1 {
        write!("ich_lr1_el2", value);
    } else {
        set_any_list_register(n, value);
    }
}

list_registers!(
    0 "ich_lr0_el2", 1 "ich_lr1_el2", 2 "ich_lr2_el2", 3 "ich_lr3_el2",
    4 "ich_lr4_el2", 5 "ich_lr5_el2", 6 "ich_lr6_el2", 7 "ich_lr7_el2",
    8 "ich_lr8_el2", 9 "ich_lr9_el2", 10 "ich_lr10_el2", 11 "ich_lr11_el2",
    12 "ich_lr12_el2", 13 "ich_lr13_el2", 14 "ich_lr14_el2", 15 "ich_lr15_el2"
);

/// Returns the groups that the guest's CPU interface signals, one bit for each (ICH_VMCR_EL2).
#[inline(always)]
pub(super) fn virtual_groups() -> u32 {
    read!("ich_vmcr_el2") as u32 & 0b11
}

/// Whether the guest's CPU interface is in EOImode 1 (ICH_VMCR_EL2.VEOIM): an interrupt stays
/// active after its end until the guest writes to ICC_DIR_EL1.
#[inline(always)]
pub fn ends_in_two_steps() -> bool {
    read!("ich_vmcr_el2") as u32 & 1 << 9 != 0
}
