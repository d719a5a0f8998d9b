//! Performance monitors, and pieces of code whose events are known.

use core::arch::global_asm;

use crate::probe::{self, Fault};

/// The interrupt of a guest's performance monitors.
pub const INTID: u32 = 23;
/// The bit and the number of the cycle counter.
pub const CYCLES: u32 = 31;
/// Events (DDI 0487, D13.11).
pub const SW_INCR: u64 = 0;
/// Instructions.
pub const INST_RETIRED: u64 = 8;
/// Cycles.
pub const CPU_CYCLES: u64 = 0x11;
/// PMEVTYPER<n>_EL0: not at EL1, not at EL0.
pub const NOT_EL1: u64 = 1 << 31;
/// See [`NOT_EL1`].
pub const NOT_EL0: u64 = 1 << 30;

/// One of the registers: op1, CRn, CRm and op2, behind op0 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(pub u32, pub u32, pub u32, pub u32);

/// PMCR_EL0.
pub const CONTROL: Register = Register(3, 9, 12, 0);
/// PMCNTENSET_EL0.
pub const ENABLE: Register = Register(3, 9, 12, 1);
/// PMCNTENCLR_EL0.
pub const DISABLE: Register = Register(3, 9, 12, 2);
/// PMOVSCLR_EL0.
pub const OVERFLOWS: Register = Register(3, 9, 12, 3);
/// PMSWINC_EL0.
pub const INCREMENT: Register = Register(3, 9, 12, 4);
/// PMSELR_EL0.
pub const SELECT: Register = Register(3, 9, 12, 5);
/// PMCEID0_EL0.
pub const EVENTS: Register = Register(3, 9, 12, 6);
/// PMCCNTR_EL0.
pub const CYCLE_COUNTER: Register = Register(3, 9, 13, 0);
/// PMXEVTYPER_EL0.
pub const SELECTED_TYPE: Register = Register(3, 9, 13, 1);
/// PMXEVCNTR_EL0.
pub const SELECTED_VALUE: Register = Register(3, 9, 13, 2);
/// PMUSERENR_EL0.
pub const USER: Register = Register(3, 9, 14, 0);
/// PMOVSSET_EL0.
pub const SET_OVERFLOWS: Register = Register(3, 9, 14, 3);
/// PMINTENSET_EL1.
pub const INTERRUPTS: Register = Register(0, 9, 14, 1);
/// PMINTENCLR_EL1.
pub const NO_INTERRUPTS: Register = Register(0, 9, 14, 2);

/// PMEVCNTR<n>_EL0.
pub const fn value(n: u32) -> Register {
    Register(3, 14, 8 + n / 8, n % 8)
}

/// PMEVTYPER<n>_EL0; 31 is PMCCFILTR_EL0.
pub const fn kind(n: u32) -> Register {
    Register(3, 14, 12 + n / 8, n % 8)
}

impl Register {
    /// The instruction that reads the register into x0, or writes it from there.
    pub const fn instruction(self, read: bool) -> u32 {
        let Self(op1, crn, crm, op2) = self;
        0xd518_0000 | (read as u32) << 21 | op1 << 16 | crn << 12 | crm << 8 | op2 << 5
    }

    /// Reads it, if it is there.
    pub fn try_read(self) -> Result<u64, Fault> {
        let mut registers = [0; 8];
        probe::code(&[self.instruction(true)], &mut registers)?;
        Ok(registers[0])
    }

    /// Writes it, if it is there.
    pub fn try_write(self, value: u64) -> Result<(), Fault> {
        let mut registers = [value, 0, 0, 0, 0, 0, 0, 0];
        probe::code(&[self.instruction(false), ISB], &mut registers)
    }

    /// Reads it.
    pub fn read(self) -> u64 {
        match self.try_read() {
            Ok(value) => value,
            Err(fault) => panic!("{self:?}: {fault:?}"),
        }
    }

    /// Writes it.
    pub fn write(self, value: u64) {
        if let Err(fault) = self.try_write(value) {
            panic!("{self:?}: {fault:?}");
        }
    }
}

const ISB: u32 = 0xd503_3fdf;

/// Lets the counters of a set count over a loop of two instructions, which is run `turns` times. Counting begins with the first instruction behind a
/// write that traps, and ends with one.
pub fn over_loop(counters: u64, turns: u64) {
    let mut registers = [counters, turns, 0, 0, 0, 0, 0, 0];
    let code = [
        ENABLE.instruction(false),
        // subs x1, x1, #1; b.ne to it.
        0xf100_0421,
        0x54ff_ffe1,
        DISABLE.instruction(false),
    ];
    assert!(probe::code(&code, &mut registers).is_ok());
}

/// The same over a loop of four instructions, one of which is a call of the hypervisor (PSCI_VERSION).
pub fn over_calls(counters: u64, turns: u64) {
    let mut registers = [counters, 0, 0, 0, counters, turns, 0x8400_0000, 0];
    let code = [
        ENABLE.instruction(false),
        // mov x0, x6; hvc #0; subs x5, x5, #1; b.ne to the first; mov x0, x4.
        0xaa06_03e0,
        0xd400_0002,
        0xf100_04a5,
        0x54ff_ffa1,
        0xaa04_03e0,
        DISABLE.instruction(false),
    ];
    assert!(probe::code(&code, &mut registers).is_ok());
}

/// The same over two NOPs, a WFI and two NOPs.
pub fn over_wfi(counters: u64) {
    let mut registers = [counters, 0, 0, 0, 0, 0, 0, 0];
    // ENABLE; nop; nop; wfi; nop; nop; DISABLE.
    const NOP: u32 = 0xd503_201f;
    const WFI: u32 = 0xd503_207f;
    let code = [
        ENABLE.instruction(false),
        NOP,
        NOP,
        WFI,
        NOP,
        NOP,
        DISABLE.instruction(false),
    ];
    assert!(probe::code(&code, &mut registers).is_ok());
}

// Pieces for EL0; each ends in an undefined instruction, where nothing else has ended it.
global_asm!(
    r#"
    .section .text.pmu, "ax"
    .global pmu_nops, pmu_read_cycles, pmu_read_event, pmu_read_enabled, pmu_write_cycles, pmu_increment, pmu_read_user
pmu_nops:         .rept 100
                  nop
                  .endr
                  udf   #0
pmu_read_cycles:  mrs   x1, pmccntr_el0
                  udf   #0
pmu_read_event:   mrs   x1, pmevcntr0_el0
                  udf   #0
pmu_read_enabled: mrs   x1, pmcntenset_el0
                  udf   #0
pmu_write_cycles: msr   pmccntr_el0, x0
                  udf   #0
pmu_increment:    msr   pmswinc_el0, x0
                  udf   #0
pmu_read_user:    mrs   x1, pmuserenr_el0
                  udf   #0
"#
);

unsafe extern "C" {
    fn pmu_nops();
    fn pmu_read_cycles();
    fn pmu_read_event();
    fn pmu_read_enabled();
    fn pmu_write_cycles();
    fn pmu_increment();
    fn pmu_read_user();
}

/// A piece of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// A hundred NOPs.
    Nops,
    /// x1 becomes PMCCNTR_EL0.
    ReadCycles,
    /// x1 becomes PMEVCNTR0_EL0.
    ReadEvent,
    /// x1 becomes PMCNTENSET_EL0.
    ReadEnabled,
    /// x0 into PMCCNTR_EL0.
    WriteCycles,
    /// x0 into PMSWINC_EL0.
    Increment,
    /// x1 becomes PMUSERENR_EL0.
    ReadUser,
}

impl Code {
    /// Where it begins.
    pub fn pc(self) -> u64 {
        let code: unsafe extern "C" fn() = match self {
            Self::Nops => pmu_nops,
            Self::ReadCycles => pmu_read_cycles,
            Self::ReadEvent => pmu_read_event,
            Self::ReadEnabled => pmu_read_enabled,
            Self::WriteCycles => pmu_write_cycles,
            Self::Increment => pmu_increment,
            Self::ReadUser => pmu_read_user,
        };
        code as *const () as u64
    }
}
