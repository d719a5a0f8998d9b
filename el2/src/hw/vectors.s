// EL2's exception vectors. While a guest runs, SP_EL2 points at the state of its vCPU (`Vcpu`),
// whose first field is the register frame; the stack grows down from there. So a vector needs no
// scratch register, and `mov x0, sp` makes the one `&mut Vcpu` that exists.
//
// The vectors save the caller-saved registers. x19 to x29 keep the guest's values while Rust runs,
// which preserves them; they go to the frame only if the trapped instruction names one of them.

    .macro save_caller
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
    str     x30, [sp, #240]
    .endm

    .macro restore_caller
    ldp     x2, x3, [sp, #16]
    ldp     x4, x5, [sp, #32]
    ldp     x6, x7, [sp, #48]
    ldp     x8, x9, [sp, #64]
    ldp     x10, x11, [sp, #80]
    ldp     x12, x13, [sp, #96]
    ldp     x14, x15, [sp, #112]
    ldp     x16, x17, [sp, #128]
    ldr     x18, [sp, #144]
    ldr     x30, [sp, #240]
    ldp     x0, x1, [sp, #0]
    .endm

    // Saves x19 to x29 to the frame at `frame`.
    .macro save_callee frame
    stp     x19, x20, [\frame, #152]
    stp     x21, x22, [\frame, #168]
    stp     x23, x24, [\frame, #184]
    stp     x25, x26, [\frame, #200]
    stp     x27, x28, [\frame, #216]
    str     x29, [\frame, #232]
    .endm

    .macro restore_callee
    ldp     x19, x20, [sp, #152]
    ldp     x21, x22, [sp, #168]
    ldp     x23, x24, [sp, #184]
    ldp     x25, x26, [sp, #200]
    ldp     x27, x28, [sp, #216]
    ldr     x29, [sp, #232]
    .endm

    // Returns to the guest. Repeated at the end of each frequent path, which saves a branch.
    // No speculation goes on behind ERET, where the guest's registers are (straight-line speculation).
    .macro resume
    restore_caller
    eret
    dsb     nsh
    isb
    .endm

    .macro el2_fault kind
    .balign 0x80
    mrs     x0, currentel           // before EL2 is up nothing can report it: see refuse.s
    cmp     x0, #8
    b.ne    sleep_for_good
    mov     x0, #\kind
    b       el2_fault_at
    .endm

    // An SError that `take_serror` lets through goes back there, with ESR_EL2 in x0; x16 and x17 are
    // free then. Elsewhere EL2 keeps SErrors masked.
    .macro el2_serror
    .balign 0x80
    mrs     x0, currentel
    cmp     x0, #8
    b.ne    sleep_for_good
    mrs     x16, elr_el2
    adr     x17, serror_taken
    sub     x16, x16, x17
    cmp     x16, #8
    b.hi    fault_by_serror
    mrs     x0, esr_el2
    eret
    dsb     nsh
    isb
    .endm

    .macro lower_sync
    .balign 0x80
    save_caller
    mrs     x1, esr_el2
    lsr     x2, x1, #26             // EC, which the handler gets too
    cmp     x2, #0x24
    b.eq    data_abort
    tbnz    x2, #3, system_register // EC 0x18, and some that are rare
    mov     x0, sp
    bl      sync_exit
    resume                          // 32 instructions: one more and the next vector moves
    .endm

    .macro lower_irq handler
    .balign 0x80
    save_caller
    mov     x0, sp
    bl      \handler
    resume
    .endm

    .section .text.vectors, "ax"
    .balign 0x800
    .global vectors
vectors:
    // Exceptions from EL2 itself: none is ever expected.
    el2_fault 0
    el2_fault 1
    el2_fault 2
    el2_fault 3
    el2_fault 0
    el2_fault 1
    el2_fault 2
    el2_serror
    // Exceptions from a guest in AArch64.
    lower_sync
    lower_irq irq_exit
    lower_irq fiq_exit
    lower_irq serror_exit
    // Exceptions from a guest in AArch32.
    lower_sync
    lower_irq irq_exit
    lower_irq fiq_exit
    lower_irq serror_exit
    .balign 0x80

    // What comes before the plain vector where a guest can teach the CPU's branch predictor (`smccc::Boundary`), or steps through a program:
    // the history is replaced, or the firmware called, before anything else at EL2 branches to where a register says. x0 to x3 go where
    // `save_caller` puts them again.
    .macro guard
    .balign 0x80
    stp     x0, x1, [sp, #0]
    mrs     x1, tpidr_el2
    ubfx    x1, x1, #21, #3         // the number of the pCPU (layout.rs)
    adr     x0, BOUNDARIES
    ldr     w0, [x0, x1, lsl #2]
    cbz     w0, 4f
    tbnz    w0, #31, 3f
1:  b       2f
2:  subs    w0, w0, #1
    b.ne    1b
    hint    #22                     // CLRBHB
    b       4f
3:  stp     x2, x3, [sp, #16]
    smc     #0
    ldp     x2, x3, [sp, #16]
4:  dsb     nsh                     // nothing behind is speculated on before the branches above are known
    isb
    .endm

    // Exceptions of EL2 itself go to the plain vectors. One table is for all pCPUs that need one, since a table takes 2 KiB.
    .balign 0x800
    .global guarded_vectors
guarded_vectors:
    .irp    vector, 0x000, 0x080, 0x100, 0x180, 0x200, 0x280, 0x300, 0x380
    .balign 0x80
    b       vectors + \vector
    .endr
    guard
    .if {steps}
    mrs     x0, mdscr_el1
    tbz     x0, #0, 5f              // MDSCR_EL1.SS
    ldp     x0, x1, [sp, #0]
    b       step
5:
    .endif
    ldp     x0, x1, [sp, #0]
    b       vectors + 0x400
    .irp    vector, 0x480, 0x500, 0x580, 0x600, 0x680, 0x700, 0x780
    guard
    ldp     x0, x1, [sp, #0]
    b       vectors + \vector
    .endr
    .balign 0x80

// x0: the kind of exception that EL2 took from itself.
fault_by_serror:
    mov     x0, #3
el2_fault_at:
    mrs     x1, sctlr_el2
    tbz     x1, #0, sleep_for_good
    mrs     x1, esr_el2
    mrs     x2, elr_el2
    mrs     x3, far_el2
    ldr     x4, =BOOT_STACK_TOP     // the current stack may be what failed
    mov     sp, x4
    b       el2_exception

// Takes the SError that is pending, if there is one: returns ESR_EL2 in x0, or 0.
    .global take_serror
take_serror:
    mov     x0, xzr
    msr     daifclr, #4
serror_taken:
    isb
    msr     daifset, #4
    ret

    // An access to x0 to x18 finds the register in the frame; for an access to x19 to x29 these
    // registers are saved there first.
    .macro access_exit handler
    cmp     x3, #19
    b.hs    1f
    mov     x0, sp
    bl      \handler
    resume
1:  save_callee sp
    mov     x0, sp
    bl      \handler
    restore_callee
    resume
    .endm

data_abort:
    ubfx    x3, x1, #16, #5         // SRT
    access_exit data_exit
system_register:
    cmp     x2, #0x18
    b.ne    1f
    ubfx    x3, x1, #5, #5          // Rt
    access_exit sysreg_exit
1:  mov     x0, sp
    bl      sync_exit
    resume

// x0: state of the vCPU. On the way to the handler of an interrupt off the fast path, saves the
// guest's other registers to the frame as well, where the monitor finds them. `irq_exit` branches
// here as its last instruction, so the registers still hold the guest's values.
    .global rare_interrupt
rare_interrupt:
    save_callee x0
    b       rare_interrupt_exit

// SP: state of the vCPU. Enters its guest, all of whose registers are in the frame.
    .global resume_whole
resume_whole:
    restore_callee
    resume

// For a CPU that has nothing more to do, before its MMU is on as well as in the vectors.
    .global sleep_for_good
sleep_for_good:
    wfe
    b       sleep_for_good

// x0: state of the vCPU. ELR_EL2 and SPSR_EL2 say where the guest starts; its registers are in the
// frame. Never returns.
    .global start_guest
    .arch_extension simd
start_guest:
    mov     sp, x0
    // EL2 is soft-float: these registers hold what firmware has left there.
    .irp    n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    movi    v\n\().2d, #0
    .endr
    .irp    n, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    movi    v\n\().2d, #0
    .endr
    msr     fpcr, xzr
    msr     fpsr, xzr
    b       resume_whole
