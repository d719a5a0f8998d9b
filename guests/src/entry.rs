//! Exceptions that a program takes on purpose, with all that their entry leaves behind.

use core::arch::{asm, global_asm};
use core::fmt;

/// State after the entry of an exception. The assembly below knows this layout.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Entry {
    /// Offset of the vector.
    pub vector: u64,
    /// ESR_EL1
    pub esr: u64,
    /// FAR_EL1
    pub far: u64,
    /// ELR_EL1
    pub elr: u64,
    /// SPSR_EL1
    pub saved: u64,
    /// CurrentEL, SPSel, DAIF and NZCV, which have bits of their own in the order of SPSR.
    pub state: u64,
    /// PAN, UAO, DIT, SSBS, TCO and ALLINT, as far as the CPU has them.
    pub newer: u64,
    /// x1 and x20, which were 0 before.
    pub results: [u64; 2],
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "vector {:#x} ESR {:#x} FAR {:#x} ELR {:#x} SPSR {:#x} state {:#x} newer {:#x}",
            self.vector, self.esr, self.far, self.elr, self.saved, self.state, self.newer
        )
    }
}

// entry_take(entry, pc, spsr, x0, has): goes to `pc` with this PSTATE and this x0, and fills in what
// the exception left. `has` has a bit for each field of `newer` that can be read.
global_asm!(
    r#"
    .arch_extension fp
    .section .text.entry, "ax"
    .macro newer bit, register
    tbz     x24, #\bit, 1f
    mrs     x11, \register
    orr     x10, x10, x11
1:
    .endm
    .macro entry_vector offset
    .balign 0x80
    mov     x25, #\offset
    b       entry_taken
    .endm
    .balign 0x800
entry_vectors:
    .irp offset, 0,0x80,0x100,0x180,0x200,0x280,0x300,0x380,0x400,0x480,0x500,0x580,0x600,0x680,0x700,0x780
    entry_vector \offset
    .endr

    .global entry_take
entry_take:
    stp     x29, x30, [sp, #-96]!
    stp     x19, x20, [sp, #16]
    stp     x21, x22, [sp, #32]
    stp     x23, x24, [sp, #48]
    stp     x25, x26, [sp, #64]
    stp     x27, x28, [sp, #80]
    mov     x23, x0
    mov     x24, x4
    mrs     x26, vbar_el1
    adr     x9, entry_vectors
    msr     vbar_el1, x9
    msr     elr_el1, x1
    msr     spsr_el1, x2
    mov     x9, sp
    msr     sp_el0, x9
    mov     x0, x3
    mov     x1, xzr
    mov     x20, xzr
    isb
    eret
entry_taken:
    str     x25, [x23]
    stp     x1, x20, [x23, #56]
    mrs     x9, esr_el1
    mrs     x10, far_el1
    stp     x9, x10, [x23, #8]
    mrs     x9, elr_el1
    mrs     x10, spsr_el1
    stp     x9, x10, [x23, #24]
    mrs     x9, CurrentEL
    mrs     x10, SPSel
    orr     x9, x9, x10
    mrs     x10, DAIF
    orr     x9, x9, x10
    mrs     x10, NZCV
    orr     x9, x9, x10
    mov     x10, xzr
    newer   0, S3_0_C4_C2_3
    newer   1, S3_0_C4_C2_4
    newer   2, S3_3_C4_C2_5
    newer   3, S3_3_C4_C2_6
    newer   4, S3_3_C4_C2_7
    newer   5, S3_0_C4_C3_0
    stp     x9, x10, [x23, #40]
    msr     vbar_el1, x26
    isb
    ldp     x19, x20, [sp, #16]
    ldp     x21, x22, [sp, #32]
    ldp     x23, x24, [sp, #48]
    ldp     x25, x26, [sp, #64]
    ldp     x27, x28, [sp, #80]
    ldp     x29, x30, [sp], #96
    ret

    // Instructions that are taken, each at its own label.
    .global entry_udf, entry_trapped, entry_sve, entry_load, entry_store, entry_pair
entry_udf:      .inst 0x00000000            // udf #0
entry_trapped:  mrs x1, S3_1_C15_C3_7
entry_sve:      .inst 0x2518e3e0            // ptrue p0.b
entry_load:     ldr x1, [x0]
entry_store:    str x1, [x0]
entry_pair:     stp x1, x2, [x0]
"#
);

unsafe extern "C" {
    fn entry_take(entry: *mut Entry, pc: u64, spsr: u64, x0: u64, has: u64);
    fn entry_udf();
    fn entry_trapped();
    fn entry_sve();
    fn entry_load();
    fn entry_store();
    fn entry_pair();
}

/// Cause of an exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// UDF.
    Undefined,
    /// A register of the implementation's, S3_1_C15_C3_7, which no CPU has.
    Trapped,
    /// PTRUE of SVE.
    Sve,
    /// LDR of 64 bits.
    Load(u64),
    /// STR of 64 bits.
    Store(u64),
    /// STP of 64 bits.
    StorePair(u64),
    /// A fetch.
    Fetch(u64),
}

impl Cause {
    /// Address of the instruction.
    pub fn pc(self) -> u64 {
        let code: unsafe extern "C" fn() = match self {
            Self::Undefined => entry_udf,
            Self::Trapped => entry_trapped,
            Self::Sve => entry_sve,
            Self::Load(_) => entry_load,
            Self::Store(_) => entry_store,
            Self::StorePair(_) => entry_pair,
            Self::Fetch(address) => return address,
        };
        code as *const () as u64
    }

    /// Address of the access, if there is one.
    pub fn address(self) -> Option<u64> {
        match self {
            Self::Load(at) | Self::Store(at) | Self::StorePair(at) | Self::Fetch(at) => Some(at),
            _ => None,
        }
    }
}

/// Takes the exception of `cause`, which must be one here, from PSTATE `spsr`. `has` has a bit for each
/// field of [`Entry::newer`] that can be read. With the MMU off, and all interrupts masked in `spsr`.
pub fn take(cause: Cause, spsr: u64, has: u64) -> Entry {
    go((cause.pc(), spsr), cause.address().unwrap_or(0), has)
}

/// Goes to a place with this PSTATE and this x0, where an exception ends it. It leaves x23, x24 and x26 to x29 alone.
pub fn go((pc, spsr): (u64, u64), x0: u64, has: u64) -> Entry {
    let mut entry = Entry::default();
    // SAFETY: what is there faults; the vectors come back here with the stack and the callee-saved
    // registers as they were, and write only `entry` (I-EL1).
    unsafe {
        entry_take(&raw mut entry, pc, spsr, x0, has);
    }
    entry
}

/// Writes SCTLR_EL1, of which only bits that act on the entry of exceptions may change.
pub fn set_sctlr(value: u64) {
    // SAFETY: the MMU, the caches and alignment checks stay as they are; the other bits act on the entry of
    // exceptions only (I-EL1).
    unsafe { asm!("msr sctlr_el1, {}", "isb", in(reg) value, options(nostack)) }
}

/// Lets EL0 and EL1 use FP and SVE, so that nothing but the hypervisor traps SVE.
pub fn allow_sve() {
    // SAFETY: CPACR_EL1 decides what traps to EL1 (I-EL1).
    unsafe { asm!("msr cpacr_el1, {}", "isb", in(reg) 0x33_0000u64, options(nostack)) }
}
