//! Debug registers, and code for breakpoints, watchpoints and steps.

use core::arch::global_asm;

use crate::probe::{self, Fault};

// Each ends in an undefined instruction, where nothing else has ended it.
global_asm!(
    r#"
    .section .text.debug, "ax"
    .global debug_nops, debug_load, debug_store
    .global debug_move, debug_id, debug_id_high, debug_mmio, debug_mmio_high, debug_hvc, debug_smc, debug_wfi, debug_wfe, debug_undefined
debug_nops:     .rept 8
                nop
                .endr
                udf     #0
debug_load:     ldr     x1, [x0]
                udf     #0
debug_store:    str     x1, [x0]
                udf     #0
debug_move:     mov     x1, #5
                mov     x1, #6
                udf     #0
debug_id:       mrs     x1, id_aa64dfr0_el1
                mov     x1, #6
                udf     #0
debug_id_high:  mrs     x20, id_aa64dfr0_el1
                mov     x20, #6
                udf     #0
debug_mmio:     ldr     w1, [x0]
                mov     x1, #6
                udf     #0
debug_mmio_high: ldr    w20, [x0]
                mov     x20, #6
                udf     #0
debug_hvc:      hvc     #0
                mov     x1, #6
                udf     #0
debug_smc:      smc     #0
                mov     x1, #6
                udf     #0
debug_wfi:      wfi
                mov     x1, #6
                udf     #0
debug_wfe:      wfe
                mov     x1, #6
                udf     #0
debug_undefined: mrs    x1, S3_1_C15_C3_7
                mov     x1, #6
                udf     #0
"#
);

unsafe extern "C" {
    fn debug_nops();
    fn debug_load();
    fn debug_store();
    fn debug_move();
    fn debug_id();
    fn debug_id_high();
    fn debug_mmio();
    fn debug_mmio_high();
    fn debug_hvc();
    fn debug_smc();
    fn debug_wfi();
    fn debug_wfe();
    fn debug_undefined();
}

/// A piece of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Eight NOPs.
    Nops,
    /// A load into x1 from where x0 points.
    Load,
    /// A store of x1 there.
    Store,
    /// x1 becomes 5, then 6, as behind all that follow.
    Move,
    /// x1 becomes ID_AA64DFR0_EL1.
    Id,
    /// x20 does.
    IdHigh,
    /// A load of 32 bits into x1.
    Mmio,
    /// The same into x20.
    MmioHigh,
    /// HVC.
    Hvc,
    /// SMC.
    Smc,
    /// WFI.
    Wfi,
    /// WFE.
    Wfe,
    /// A register that no CPU has.
    Undefined,
}

impl Code {
    /// Where it begins.
    pub fn pc(self) -> u64 {
        let code: unsafe extern "C" fn() = match self {
            Self::Nops => debug_nops,
            Self::Load => debug_load,
            Self::Store => debug_store,
            Self::Move => debug_move,
            Self::Id => debug_id,
            Self::IdHigh => debug_id_high,
            Self::Mmio => debug_mmio,
            Self::MmioHigh => debug_mmio_high,
            Self::Hvc => debug_hvc,
            Self::Smc => debug_smc,
            Self::Wfi => debug_wfi,
            Self::Wfe => debug_wfe,
            Self::Undefined => debug_undefined,
        };
        code as *const () as u64
    }
}

/// A debug register: CRn, CRm and op2, behind op0 2 and op1 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(pub u32, pub u32, pub u32);

/// MDSCR_EL1.
pub const MDSCR: Register = Register(0, 2, 2);
/// OSLAR_EL1.
pub const OSLAR: Register = Register(1, 0, 4);
/// OSLSR_EL1.
pub const OSLSR: Register = Register(1, 1, 4);
/// DBGBVR<n>_EL1, DBGBCR<n>_EL1, DBGWVR<n>_EL1, DBGWCR<n>_EL1.
pub const fn pair(n: u32, which: Which) -> Register {
    Register(0, n, which as u32)
}

/// Which register of a breakpoint or watchpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// DBGBVR<n>_EL1.
    BreakValue = 4,
    /// DBGBCR<n>_EL1.
    BreakControl = 5,
    /// DBGWVR<n>_EL1.
    WatchValue = 6,
    /// DBGWCR<n>_EL1.
    WatchControl = 7,
}

impl Register {
    const fn instruction(self, read: bool) -> u32 {
        let Self(crn, crm, op2) = self;
        0xd510_0000 | (read as u32) << 21 | crn << 12 | crm << 8 | op2 << 5
    }

    /// Writes it.
    pub fn write(self, value: u64) -> Result<(), Fault> {
        const ISB: u32 = 0xd503_3fdf;
        let mut registers = [value, 0, 0, 0, 0, 0, 0, 0];
        probe::code(&[self.instruction(false), ISB], &mut registers)
    }

    /// Reads it.
    pub fn read(self) -> Result<u64, Fault> {
        let mut registers = [0; 8];
        probe::code(&[self.instruction(true)], &mut registers)?;
        Ok(registers[0])
    }
}

/// Writes CONTEXTIDR_EL1.
pub fn set_context(value: u64) {
    let mut registers = [value, 0, 0, 0, 0, 0, 0, 0];
    // MSR CONTEXTIDR_EL1, x0; ISB.
    let done = probe::code(&[0xd518_d020, 0xd503_3fdf], &mut registers);
    assert!(done.is_ok());
}
