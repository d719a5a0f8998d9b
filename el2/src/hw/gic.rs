//! The physical GICv3 as EL2 uses it (IHI 0069H): the CPU interface and the virtual interface by system
//! registers, distributor and redistributor by their frames.

use super::mmio::Registers;
use super::sysreg::{isb, read, write};

/// Bytes of one redistributor.
pub const GICR_STRIDE: u64 = 0x2_0000;
const SGI_FRAME: u64 = 0x1_0000;
/// `GICD_CTLR`: affinity routing, group 1; RWP says that a write is not yet in effect.
const ARE_GROUP1: u32 = 1 << 4 | 1 << 1;
const RWP: u32 = 1 << 31;
/// `GICR_CTLR.RWP`.
const GICR_RWP: u32 = 1 << 3;
/// Priority of all physical interrupts: EL2 takes them in the order in which they come.
const PRIORITY: u32 = 0x8080_8080;
/// Turns that EL2 waits for a register write; hardware needs a few.
const PATIENCE: u32 = 1_000;
/// No interrupt is pending.
pub const SPURIOUS: u32 = 1023;
/// INTID of the SGI by which pCPUs kick each other.
pub const KICK: u32 = 0;

fn settled(done: impl Fn() -> bool) {
    for _ in 0..PATIENCE {
        if done() {
            return;
        }
    }
}

/// Puts the distributor into its first state: all SPIs disabled, group 1, on the way to nobody.
pub fn start_distributor(gicd: Registers) {
    gicd.write(0, 0);
    settled(|| gicd.read(0) & RWP == 0);
    let words = u64::from(gicd.read(4) & 31).saturating_add(1);
    for n in 1..words {
        let at = n.wrapping_mul(4);
        gicd.write(0x180u64.wrapping_add(at), u32::MAX);
        gicd.write(0x280u64.wrapping_add(at), u32::MAX);
        gicd.write(0x380u64.wrapping_add(at), u32::MAX);
        gicd.write(0x80u64.wrapping_add(at), u32::MAX);
    }
    for n in 8..words.wrapping_mul(8) {
        gicd.write(0x400u64.wrapping_add(n.wrapping_mul(4)), PRIORITY);
    }
    gicd.write(0, ARE_GROUP1);
    settled(|| gicd.read(0) & RWP == 0);
}

/// Gives an SPI to a pCPU, with its trigger.
pub fn route(gicd: Registers, intid: u32, mpidr: u64, edge: bool) {
    let n = u64::from(intid);
    let at = 0xc00u64.wrapping_add(n / 16 * 4);
    let bit = 2u32 << (n % 16 * 2);
    let config = gicd.read(at);
    gicd.write(at, if edge { config | bit } else { config & !bit });
    gicd.write64(0x6000u64.wrapping_add(n.wrapping_mul(8)), mpidr);
}

/// The redistributor of a CPU, by its GICR_TYPER.
pub fn is_redistributor_of(gicr: Registers, mpidr: u64) -> bool {
    let affinity = (mpidr >> 32 & 0xff) << 24 | mpidr & 0xff_ffff;
    gicr.read64(8) >> 32 == affinity
}

/// Wakes this pCPU's redistributor and switches its interrupts off, but those in `wanted`.
pub fn start_redistributor(gicr: Registers, wanted: u32) {
    gicr.write(0x14, gicr.read(0x14) & !2);
    settled(|| gicr.read(0x14) & 4 == 0);
    gicr.write(SGI_FRAME + 0x180, u32::MAX);
    gicr.write(SGI_FRAME + 0x280, u32::MAX);
    gicr.write(SGI_FRAME + 0x380, u32::MAX);
    gicr.write(SGI_FRAME + 0x80, u32::MAX);
    for n in 0..8u64 {
        gicr.write(
            (SGI_FRAME + 0x400).wrapping_add(n.wrapping_mul(4)),
            PRIORITY,
        );
    }
    settled(|| gicr.read(0) & GICR_RWP == 0);
    gicr.write(SGI_FRAME + 0x100, wanted);
}

/// Starts this pCPU's CPU interface and its virtual interface; how many list registers it has.
pub fn start_cpu_interface() -> u32 {
    // ICC_SRE_EL2: system registers here and at EL1, no bypass.
    write!("S3_4_C12_C9_5", 0xf);
    isb();
    // ICC_PMR_EL1: every priority.
    write!("S3_0_C4_C6_0", 0xff);
    // ICC_CTLR_EL1.EOImode: EOIR drops the priority, DIR or the guest deactivates.
    write!("S3_0_C12_C12_4", 1 << 1);
    // ICC_IGRPEN1_EL1
    write!("S3_0_C12_C12_7", 1);
    // ICH_VMCR_EL2 at reset; ICH_HCR_EL2.En
    write!("S3_4_C12_C11_7", 0);
    write!("S3_4_C12_C11_0", 1);
    isb();
    // ICH_VTR_EL2.ListRegs, ICC_SRE_EL1 of guests is fixed to 7 by ICC_SRE_EL2.
    let lrs = ((read!("S3_4_C12_C11_1") & 31) as u32).saturating_add(1);
    for n in 0..lrs {
        set_list_register(n, 0);
    }
    for (group0, group1) in [(true, false), (false, true)] {
        clear_active_priorities(group0, group1);
    }
    lrs
}

/// ICH_AP0R0_EL2 and ICH_AP1R0_EL2: no virtual interrupt is active.
fn clear_active_priorities(group0: bool, group1: bool) {
    if group0 {
        write!("S3_4_C12_C8_0", 0);
    }
    if group1 {
        write!("S3_4_C12_C9_0", 0);
    }
}

/// Acknowledges the most urgent interrupt (ICC_IAR1_EL1).
#[inline(always)]
pub fn acknowledge() -> u32 {
    read!("S3_0_C12_C12_0") as u32 & 0xff_ffff
}

/// Drops the running priority (ICC_EOIR1_EL1); the interrupt stays active.
#[inline(always)]
pub fn drop_priority(intid: u32) {
    write!("S3_0_C12_C12_1", u64::from(intid));
}

/// Deactivates an interrupt (ICC_DIR_EL1).
#[inline(always)]
pub fn deactivate(intid: u32) {
    write!("S3_0_C12_C11_1", u64::from(intid));
}

/// Sends the kick to a pCPU (ICC_SGI1R_EL1).
pub fn kick(mpidr: u64) {
    let aff = |n: u32| mpidr >> n & 0xff;
    let target =
        aff(32) << 48 | aff(16) << 32 | aff(8) << 16 | 1 << (aff(0) & 15) | (aff(0) / 16) << 44;
    super::sysreg::dsb();
    write!("S3_0_C12_C11_5", u64::from(KICK) << 24 | target);
    isb();
}

/// Writes the list register of the virtual timer (ICH_LR0_EL2).
#[inline(always)]
pub fn set_timer_register(value: u64) {
    write!("S3_4_C12_C12_0", value);
}

/// ICH_ELRSR_EL2.
#[inline(always)]
pub fn empty_list_registers() -> u32 {
    read!("S3_4_C12_C11_5") as u32
}

/// ICH_EISR_EL2.
pub fn ended_list_registers() -> u32 {
    read!("S3_4_C12_C11_3") as u32
}

/// ICH_HCR_EL2.UIE.
pub fn ask_refill(on: bool) {
    write!("S3_4_C12_C11_0", if on { 0b11 } else { 1 });
}

macro_rules! list_registers {
    ($($n:literal $name:literal),*) => {
        /// Reads ICH_LR\<n\>_EL2.
        #[inline]
        pub fn list_register(n: u32) -> u64 {
            match n { $($n => read!($name),)* _ => 0 }
        }

        /// Writes ICH_LR\<n\>_EL2.
        #[inline]
        pub fn set_list_register(n: u32, value: u64) {
            match n { $($n => write!($name, value),)* _ => {} }
        }
    };
}

list_registers!(
    0 "S3_4_C12_C12_0", 1 "S3_4_C12_C12_1", 2 "S3_4_C12_C12_2", 3 "S3_4_C12_C12_3",
    4 "S3_4_C12_C12_4", 5 "S3_4_C12_C12_5", 6 "S3_4_C12_C12_6", 7 "S3_4_C12_C12_7",
    8 "S3_4_C12_C13_0", 9 "S3_4_C12_C13_1", 10 "S3_4_C12_C13_2", 11 "S3_4_C12_C13_3",
    12 "S3_4_C12_C13_4", 13 "S3_4_C12_C13_5", 14 "S3_4_C12_C13_6", 15 "S3_4_C12_C13_7"
);

/// The physical GIC as one pCPU uses it.
#[derive(Clone, Copy, Debug)]
pub struct Gic {
    /// The distributor.
    pub gicd: Registers,
    /// This pCPU's redistributor.
    pub gicr: Registers,
    /// List registers of the virtual interface.
    pub list_registers: u32,
    /// A bit for each of them but that of the virtual timer.
    pub usable: u32,
}

impl Gic {
    /// Frame and offset of the register bank at `bank` for an INTID, and its bit.
    fn bank(&self, bank: u64, intid: u32) -> (Registers, u64, u32) {
        let bit = 1 << (intid % 32);
        if intid < 32 {
            (self.gicr, SGI_FRAME.wrapping_add(bank), bit)
        } else {
            (
                self.gicd,
                bank.wrapping_add(u64::from(intid / 32).wrapping_mul(4)),
                bit,
            )
        }
    }

    /// Lets an interrupt be signalled.
    pub fn enable(&self, intid: u32) {
        let (frame, at, bit) = self.bank(0x100, intid);
        frame.write(at, bit);
    }

    /// Keeps an interrupt from being signalled, and waits until that is so.
    pub fn disable(&self, intid: u32) {
        let (frame, at, bit) = self.bank(0x180, intid);
        frame.write(at, bit);
        let rwp = if intid < 32 { GICR_RWP } else { RWP };
        settled(|| frame.read(0) & rwp == 0);
    }

    /// Sets or clears the pending state of an interrupt.
    pub fn set_pending(&self, intid: u32, pending: bool) {
        let (frame, at, bit) = self.bank(if pending { 0x200 } else { 0x280 }, intid);
        frame.write(at, bit);
    }

    /// An interrupt is pending.
    pub fn is_pending(&self, intid: u32) -> bool {
        let (frame, at, bit) = self.bank(0x200, intid);
        frame.read(at) & bit != 0
    }
}

/// Acknowledges and ends a Group 0 interrupt (ICC_IAR0_EL1, ICC_EOIR0_EL1, ICC_DIR_EL1); its INTID.
pub fn acknowledge_group0() -> u32 {
    let intid = read!("S3_0_C12_C8_0") as u32 & 0xff_ffff;
    if intid < SPURIOUS {
        write!("S3_0_C12_C8_1", u64::from(intid));
        deactivate(intid);
    }
    intid
}
