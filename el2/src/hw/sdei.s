// The handler that the firmware calls when SDEI event 0 is signalled on this pCPU (DEN0054C, 4.1):
// at EL2, on top of whatever ran, with x0: the event, x1: the pCPU's note, x2 and x3: the
// interrupted ELR and SPSR. The firmware restores x0 to x17; the handler uses no other registers,
// and no stack.

    .section .text.sdei, "ax"
    .global sdei_event
sdei_event:
    mov     w4, #1
    str     w4, [x1]
    and     x5, x3, #0xc            // M: the interrupted exception level
    cmp     x5, #8
    b.eq    1f
    // A guest was interrupted: EL2 continues as if a FIQ had arrived.
    ldr     x1, =vectors + 0x500
    b       resume_at
1:  adr     x5, sdei_wait
    sub     x5, x2, x5
    cmp     x5, #sdei_slept - sdei_wait
    b.lo    2f
    // EL2 was interrupted, anywhere: EL2 continues, and the guest enters EL2 before its next
    // instruction, by software step (DDI 0487, D2.12): MDCR_EL2.TDE, MDSCR_EL1.SS, and SPSR_EL2.SS
    // is 0. EVENT_COMPLETE.
    mrs     x5, mdcr_el2
    orr     x5, x5, #1 << 8
    msr     mdcr_el2, x5
    msr     mdscr_el1, x4
    ldr     w0, =0xc4000025
    mov     x1, xzr
    smc     #0
    b       sleep_for_good
    // EL2 was about to sleep: it does not. The call below changes ELR_EL2 and SPSR_EL2, so they are
    // saved.
2:  mrs     x5, elr_el2
    mrs     x6, spsr_el2
    stp     x5, x6, [x1, #8]
    adr     x1, sdei_woken
// x1: the address at which EL2 continues (EVENT_COMPLETE_AND_RESUME).
resume_at:
    ldr     w0, =0xc4000026
    smc     #0
    b       sleep_for_good

// x0: the pCPU's note. Returns when an event has arrived, or for no reason.
    .global sdei_wait
sdei_wait:
    ldr     w1, [x0]
    cbnz    w1, sdei_slept
    dsb     sy
    wfi
sdei_slept:
    ret
sdei_woken:
    ldp     x1, x2, [x0, #8]
    msr     elr_el2, x1
    msr     spsr_el2, x2
    ret
