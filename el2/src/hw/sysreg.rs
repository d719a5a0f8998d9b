//! System registers: `read!` and `write!` for the modules of `hw`, and functions for the few
//! registers that other modules read. Registers whose names the assembler does not accept for this
//! target go by [`name!`].

/// The operand of a system register for the assembler: its name, or the encoding of a register that
/// belongs to an extension which the target does not have (DDI 0487, D24.1).
macro_rules! name {
    (HCRX_EL2) => {
        "S3_4_C1_C2_2"
    };
    (HFGRTR_EL2) => {
        "S3_4_C1_C1_4"
    };
    (HFGWTR_EL2) => {
        "S3_4_C1_C1_5"
    };
    (HFGITR_EL2) => {
        "S3_4_C1_C1_6"
    };
    (HDFGRTR_EL2) => {
        "S3_4_C3_C1_4"
    };
    (HDFGWTR_EL2) => {
        "S3_4_C3_C1_5"
    };
    (HFGRTR2_EL2) => {
        "S3_4_C3_C1_2"
    };
    (HFGWTR2_EL2) => {
        "S3_4_C3_C1_3"
    };
    (HFGITR2_EL2) => {
        "S3_4_C3_C1_7"
    };
    (HDFGRTR2_EL2) => {
        "S3_4_C3_C1_0"
    };
    (HDFGWTR2_EL2) => {
        "S3_4_C3_C1_1"
    };
    (PMSCR_EL2) => {
        "S3_4_C9_C9_0"
    };
    (TRFCR_EL2) => {
        "S3_4_C1_C2_1"
    };
    (VDISR_EL2) => {
        "S3_4_C12_C1_1"
    };
    ($name:literal) => {
        $name
    };
}

/// Reads a system register.
macro_rules! read {
    ($name:tt) => {{
        let value: u64;
        // SAFETY: [R-SYSREG] reading this register has no effect on memory that Rust knows of.
        unsafe {
            core::arch::asm!(concat!("mrs {}, ", $crate::hw::sysreg::name!($name)), out(reg) value, options(nomem, nostack, preserves_flags));
        }
        value
    }};
}

/// Writes a system register.
macro_rules! write {
    ($name:tt, $value:expr) => {{
        let value: u64 = $value;
        // SAFETY: [R-SYSREG] the caller, in `hw`, owns this register and is responsible for the
        // value.
        unsafe {
            core::arch::asm!(concat!("msr ", $crate::hw::sysreg::name!($name), ", {}"), in(reg) value, options(nostack, preserves_flags));
        }
    }};
}

/// Writes 0 to a system register.
macro_rules! clear {
    ($name:tt) => {{
        // SAFETY: [R-SYSREG] the caller, in `hw`, owns this register and is responsible for the
        // value 0.
        unsafe {
            core::arch::asm!(
                concat!("msr ", $crate::hw::sysreg::name!($name), ", xzr"),
                options(nostack, preserves_flags)
            );
        }
    }};
}

pub(crate) use {clear, name, read, write};

/// Executes an instruction synchronisation barrier.
#[inline(always)]
pub fn isb() {
    // SAFETY: [R-SYSREG] a barrier.
    unsafe { core::arch::asm!("isb", options(nostack, preserves_flags)) }
}

/// Executes a data synchronisation barrier, full system.
#[inline(always)]
pub fn dsb() {
    // SAFETY: [R-SYSREG] a barrier.
    unsafe { core::arch::asm!("dsb sy", options(nostack, preserves_flags)) }
}

/// Wakes pCPUs that wait for an event (SEV), after everything that was done before.
#[inline(always)]
pub fn send_event() {
    // SAFETY: [R-SYSREG] a barrier and a hint.
    unsafe { core::arch::asm!("dsb sy", "sev", options(nostack, preserves_flags)) }
}

/// Orders everything written so far before anything that follows, as seen by all pCPUs.
#[inline(always)]
pub fn publish() {
    // SAFETY: [R-SYSREG] a barrier.
    unsafe { core::arch::asm!("dsb ishst", options(nostack, preserves_flags)) }
}

/// Waits for what was done so far, and returns whether an SError is pending (ISR_EL1.A).
#[inline(always)]
pub fn serror_is_pending() -> bool {
    dsb();
    isb();
    read!("isr_el1") & 1 << 8 != 0
}

/// Returns whether an interrupt waits for this CPU, at EL2 with its interrupts masked (ISR_EL1.{A, I, F}).
#[inline(always)]
pub fn interrupt_waits() -> bool {
    read!("isr_el1") & 0b111 << 6 != 0
}

/// Reads the cycle counter, which counts at EL1, EL0 and EL2.
#[inline(always)]
pub fn cycles() -> u64 {
    read!("pmccntr_el0")
}

/// Reads the syndrome of the exception that EL2 took (ESR_EL2).
#[inline(always)]
pub fn esr() -> u64 {
    read!("esr_el2")
}

/// Reads the address at which the guest was (ELR_EL2).
#[inline(always)]
pub fn elr() -> u64 {
    read!("elr_el2")
}

/// Sets the address at which the guest continues (ELR_EL2).
#[inline(always)]
pub fn set_elr(pc: u64) {
    write!("elr_el2", pc);
}

/// Reads the faulting virtual address of the guest (FAR_EL2).
#[inline(always)]
pub fn far() -> u64 {
    read!("far_el2")
}

/// Reads the faulting IPA of the guest (HPFAR_EL2).
#[inline(always)]
pub fn hpfar() -> u64 {
    read!("hpfar_el2")
}

/// Reads TPIDR_EL2: the address of this pCPU's state once it is in its private map, 0 before.
pub fn thread() -> u64 {
    read!("tpidr_el2")
}
