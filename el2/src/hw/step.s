// The synchronous exceptions of a guest that steps through a program (MDSCR_EL1.SS). An instruction that EL2 has emulated was executed: the step is
// over, PSTATE.SS is 0, and the guest takes the exception of the step before the next instruction (DDI 0487, D2.11). For HVC the hardware
// does that, and for SMC and WFI, whose vCPU may leave the pCPU before it returns, it is done first.
//
// Such a pCPU has the guarded vectors (vectors.s), whether or not it guards its boundary.

    .equ    SS, 21                  // SPSR_EL2.SS

    .macro end_step scratch
    mrs     \scratch, spsr_el2
    bic     \scratch, \scratch, #1 << SS
    msr     spsr_el2, \scratch
    .endm

    .section .text.rare, "ax"
// SP: the state of the vCPU. As `lower_sync` in vectors.s, with an end of the step.
step:
    stp     x0, x1, [sp, #0]
    stp     x2, x3, [sp, #16]
    stp     x4, x5, [sp, #32]
    stp     x6, x7, [sp, #48]
    stp     x8, x9, [sp, #64]
    stp     x10, x11, [sp, #80]
    stp     x12, x13, [sp, #96]
    stp     x14, x15, [sp, #112]
    stp     x16, x17, [sp, #128]
    str     x18, [sp, #144]
    stp     x19, x20, [sp, #152]
    stp     x21, x22, [sp, #168]
    stp     x23, x24, [sp, #184]
    stp     x25, x26, [sp, #200]
    stp     x27, x28, [sp, #216]
    stp     x29, x30, [sp, #232]
    mrs     x1, esr_el2
    lsr     x2, x1, #26             // EC
    mov     x0, sp
    cmp     x2, #0x24               // a data abort
    b.eq    1f
    cmp     x2, #0x18               // MSR, MRS, or maintenance
    b.eq    1f
    cmp     x2, #0x01               // WFI and WFE
    b.eq    2f
    cmp     x2, #0x17               // SMC
    b.ne    3f
2:  end_step x3
3:  bl      sync_exit
    b       resume_whole
    // Whether they are emulated turns out by where the guest goes on.
1:  mrs     x3, elr_el2
    str     x3, [sp, #-16]!
    cmp     x2, #0x24
    b.eq    4f
    bl      sysreg_exit
    b       5f
4:  bl      data_exit
5:  ldr     x1, [sp], #16
    mrs     x2, elr_el2
    sub     x2, x2, x1
    cmp     x2, #4
    b.ne    6f
    end_step x3
6:  b       resume_whole
