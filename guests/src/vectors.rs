//! Exception vectors: interrupts go to the program, faults to `probe` when it expects one, everything
//! else ends the program with a report.

use crate::{check, power, println, probe};
use core::arch::global_asm;

/// Registers of the interrupted code. The assembly below knows this layout.
#[repr(C)]
pub struct Frame {
    /// x0 to x30.
    pub x: [u64; 31],
    /// Return address of the exception (ELR_EL1).
    pub elr: u64,
    /// PSTATE to return to (SPSR_EL1).
    pub spsr: u64,
    /// CNTVCT_EL0, read by the third instruction of the vector.
    pub entered: u64,
    /// Syndrome.
    pub esr: u64,
    /// Address of a fault.
    pub far: u64,
}

/// Bytes of a [`Frame`]; a multiple of 16, as SP must be.
pub const FRAME: usize = size_of::<Frame>();

global_asm!(
    r#"
    .macro vector kind
    .balign 0x80
    sub     sp, sp, #{frame}
    stp     x0, x1, [sp]
    mrs     x0, cntvct_el0
    mov     x1, #\kind
    b       guest_exception
    .endm

    .section .text.vectors, "ax"
    .balign 0x800
    .global guest_vectors
guest_vectors:
    .irp kind, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    vector \kind
    .endr

guest_exception:
    stp     x2, x3, [sp, #16]
    stp     x4, x5, [sp, #32]
    stp     x6, x7, [sp, #48]
    stp     x8, x9, [sp, #64]
    stp     x10, x11, [sp, #80]
    stp     x12, x13, [sp, #96]
    stp     x14, x15, [sp, #112]
    stp     x16, x17, [sp, #128]
    stp     x18, x19, [sp, #144]
    stp     x20, x21, [sp, #160]
    stp     x22, x23, [sp, #176]
    stp     x24, x25, [sp, #192]
    stp     x26, x27, [sp, #208]
    stp     x28, x29, [sp, #224]
    mrs     x2, elr_el1
    stp     x30, x2, [sp, #240]
    mrs     x2, spsr_el1
    stp     x2, x0, [sp, #256]
    mrs     x2, esr_el1
    mrs     x3, far_el1
    stp     x2, x3, [sp, #272]
    mov     x0, sp
    bl      vectors_rust
    ldp     x30, x2, [sp, #240]
    ldr     x3, [sp, #256]
    msr     elr_el1, x2
    msr     spsr_el1, x3
    ldp     x28, x29, [sp, #224]
    ldp     x26, x27, [sp, #208]
    ldp     x24, x25, [sp, #192]
    ldp     x22, x23, [sp, #176]
    ldp     x20, x21, [sp, #160]
    ldp     x18, x19, [sp, #144]
    ldp     x16, x17, [sp, #128]
    ldp     x14, x15, [sp, #112]
    ldp     x12, x13, [sp, #96]
    ldp     x10, x11, [sp, #80]
    ldp     x8, x9, [sp, #64]
    ldp     x6, x7, [sp, #48]
    ldp     x4, x5, [sp, #32]
    ldp     x2, x3, [sp, #16]
    ldp     x0, x1, [sp]
    add     sp, sp, #{frame}
    eret
"#,
    frame = const FRAME,
);

const SYNC: u64 = 4;
const IRQ: u64 = 5;
/// Synchronous, from EL0 in AArch64 and in AArch32.
const USER_SYNC: [u64; 2] = [8, 12];
/// PSTATE of EL1 with its own stack pointer, all masks closed.
const EL1H: u64 = 0x3c5;
/// PSTATE.IL.
const ILLEGAL: u64 = 1 << 20;

unsafe extern "Rust" {
    safe fn guest_irq(entered: u64);
}

#[unsafe(no_mangle)]
extern "C" fn vectors_rust(frame: &mut Frame, kind: u64) {
    match kind {
        IRQ => guest_irq(frame.entered),
        // After an illegal return the state is illegal until it is left for good.
        SYNC if probe::caught(frame) => frame.spsr &= !ILLEGAL,
        // A probe that went to EL0: it goes on at EL1.
        kind if USER_SYNC.contains(&kind) && probe::caught(frame) => frame.spsr = EL1H,
        _ => fatal(frame, kind),
    }
}

fn fatal(frame: &Frame, kind: u64) -> ! {
    let name = match kind % 4 {
        0 => "synchronous exception",
        1 => "IRQ",
        2 => "FIQ",
        _ => "SError",
    };
    println!(
        "FAIL exception: unexpected {name} (vector {:#x}), pc {:#x}, ESR {:#x}, FAR {:#x}",
        kind * 0x80,
        frame.elr,
        frame.esr,
        frame.far
    );
    check::done();
    power::off()
}
