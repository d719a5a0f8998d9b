// Switches between threads of EL2, and between the registers of vCPUs.

    .section .text.switch, "ax"

// x0: address of the state of the pCPU, which the next thread gets; x1: where to save this thread's
// stack pointer; x2: stack pointer of the next thread. Returns on the next thread's stack, with x0
// unchanged. Preserves x19, x29 and x30 only.
    .global switch_stack
switch_stack:
    stp     x19, x29, [sp, #-32]!
    str     x30, [sp, #16]
    mov     x9, sp
    str     x9, [x1]
    mov     sp, x2
    ldr     x30, [sp, #16]
    ldp     x19, x29, [sp], #32
    ret

// Starts a thread. x19: its state; x0: address of the state of the pCPU.
    .global start_thread
start_thread:
    mov     x1, x0
    mov     x0, x19
    mov     x29, xzr
    mov     x30, xzr
    b       vcpu_main

// Makes a thread rest whose guest's registers are all in the frame: it resumes in rested_thread,
// with nothing else on its stack.
    .macro discard_stack state
    adr     x9, rested_thread
    stp     \state, xzr, [\state, #-32]
    str     x9, [\state, #-16]
    .endm

// x0: state of the thread that rests; x1: address of the state of the pCPU, which the next thread
// gets; x2: stack pointer of the next thread.
    .global rest_thread
rest_thread:
    discard_stack x0
    mov     x0, x1
    mov     sp, x2
    ldr     x30, [sp, #16]
    ldp     x19, x29, [sp], #32
    ret

// Resumes a thread that has rested. x19: its state; x0: address of the state of the pCPU.
rested_thread:
    mov     x1, x0
    mov     x0, x19
    mov     x29, xzr
    bl      vcpu_goes_on
    b       resume_whole

// x0: state of the thread that rests; x1: state of the next thread, which has rested and whose vCPU
// has been loaded.
    .global pass_to_guest
pass_to_guest:
    discard_stack x0
    mov     sp, x1
    b       resume_whole

    .macro keep at, first, second
    mrs     x1, \first
    mrs     x2, \second
    stp     x1, x2, [x0, #\at]
    .endm

    .macro bring at, first, second
    ldp     x1, x2, [x0, #\at]
    msr     \first, x1
    msr     \second, x2
    .endm

    .macro el1_control what
    \what   0, sctlr_el1, tcr_el1
    .endm

    // Without MDSCR_EL1: the guest's accesses to it trap.
    .macro el1_registers what
    \what   16, ttbr0_el1, ttbr1_el1
    \what   32, mair_el1, vbar_el1
    \what   48, cpacr_el1, contextidr_el1
    \what   64, esr_el1, far_el1
    \what   80, elr_el1, spsr_el1
    \what   96, sp_el0, sp_el1
    \what   112, tpidr_el0, tpidrro_el0
    \what   128, tpidr_el1, par_el1
    \what   144, csselr_el1, cntkctl_el1
    \what   160, elr_el2, spsr_el2
    \what   176, fpcr, fpsr
    .endm

    // Registers that many cores do not implement: there they read as zero and ignore writes.
    .macro auxiliary_registers what
    \what   192, amair_el1, afsr0_el1
    \what   224, afsr1_el1, afsr1_el1
    .endm

    .macro machine_registers what
    \what   208, vttbr_el2, vmpidr_el2
    \what   240, cntvoff_el2, cnthctl_el2
    .endm

    .arch_extension fp
    .arch_extension simd

// x0: where to save the registers of the vCPU (`context::Registers`).
    .global save_machine
save_machine:
    machine_registers keep
    ret

// x0: where to save the registers of the vCPU (`context::Registers`); x1: `cpu::switch_quirks`.
    .global save_registers
save_registers:
    tbz     x1, #0, 1f
    auxiliary_registers keep
1:  el1_control keep
    el1_registers keep
// A separate symbol for measurements.
save_vectors:
    stp     q0, q1, [x0, #256]
    stp     q2, q3, [x0, #288]
    stp     q4, q5, [x0, #320]
    stp     q6, q7, [x0, #352]
    stp     q8, q9, [x0, #384]
    stp     q10, q11, [x0, #416]
    stp     q12, q13, [x0, #448]
    stp     q14, q15, [x0, #480]
    stp     q16, q17, [x0, #512]
    stp     q18, q19, [x0, #544]
    stp     q20, q21, [x0, #576]
    stp     q22, q23, [x0, #608]
    stp     q24, q25, [x0, #640]
    stp     q26, q27, [x0, #672]
    stp     q28, q29, [x0, #704]
    stp     q30, q31, [x0, #736]
    ret

// x0: the saved registers of the vCPU (`context::Registers`); x1: `cpu::switch_quirks`.
    .global restore_registers
restore_registers:
    cbnz    x1, restore_with_quirks
.Lrestore_all:
    machine_registers bring
    el1_control bring
    el1_registers bring
restore_vectors:
    ldp     q0, q1, [x0, #256]
    ldp     q2, q3, [x0, #288]
    ldp     q4, q5, [x0, #320]
    ldp     q6, q7, [x0, #352]
    ldp     q8, q9, [x0, #384]
    ldp     q10, q11, [x0, #416]
    ldp     q12, q13, [x0, #448]
    ldp     q14, q15, [x0, #480]
    ldp     q16, q17, [x0, #512]
    ldp     q18, q19, [x0, #544]
    ldp     q20, q21, [x0, #576]
    ldp     q22, q23, [x0, #608]
    ldp     q24, q25, [x0, #640]
    ldp     q26, q27, [x0, #672]
    ldp     q28, q29, [x0, #704]
    ldp     q30, q31, [x0, #736]
    ret

// Apart: with it the rest would not fit before the tables of vectors (el2.ld).
    .section .text.switch_quirks, "ax"
restore_with_quirks:
    tbz     x1, #0, 2f
    auxiliary_registers bring
2:  tbz     x1, #1, .Lrestore_all
// Walks by speculation (core/src/cpu/errata.rs) find the translation on, and closed, from before the
// first register changes until all have: first no walks (TCR_EL1.EPD0 and EPD1), then stage 1 on
// (SCTLR_EL1.M); at the end the next vCPU's SCTLR_EL1, and only then its TCR_EL1. In any other order
// a walk could use the tables of a guest whose stage 1 is off.
    mov     x3, #0x80
    movk    x3, #0x80, lsl #16
    mrs     x1, tcr_el1
    orr     x1, x1, x3
    msr     tcr_el1, x1
    isb
    mrs     x1, sctlr_el1
    orr     x1, x1, #1
    msr     sctlr_el1, x1
    isb
    machine_registers bring
    el1_registers bring
    isb
    ldp     x1, x2, [x0]
    msr     sctlr_el1, x1
    isb
    msr     tcr_el1, x2
    b       restore_vectors
