// The last words of a start that fails before EL2 has a map or a device tree: EL2 was entered at
// the wrong exception level, or in a place where it cannot run. The MMU is off and there is no
// stack. The UART is the one that the plan names. The plan lies after the image; only its UART is
// read, if it is a plan and its UART is of the kind that this build drives.

    .section .text.head, "ax"

// Reads and writes a register of the UART, which x1 is the address of. Some of the 8250's family take bytes only.
    .macro  from_uart value, offset
    .if {kind} == 4 || {kind} == 5
    ldrb    \value, [x1, #\offset]
    .else
    ldr     \value, [x1, #\offset]
    .endif
    .endm
    .macro  to_uart value, offset
    .if {kind} == 4 || {kind} == 5
    strb    \value, [x1, #\offset]
    .else
    str     \value, [x1, #\offset]
    .endif
    .endm

// The MMU and caches are off, so text is read like device memory: one byte at a time, which needs
// no alignment.
wrong_level:                        // x1: CurrentEL
    adr     x0, said_level1
    adr     x2, said_level3
    cmp     x1, #12
    csel    x0, x2, x0, eq
    b       refuse
too_high:
    adr     x0, said_too_high
    b       refuse
host_only:
    adr     x0, said_host_only

// x0: the text to send, which ends with 0.
refuse:
    msr     daifset, #0xf
    adrp    x1, __el2_end
    add     x1, x1, :lo12:__el2_end
    ldr     x2, [x1]
    ldr     x3, ={magic}
    cmp     x2, x3
    b.ne    4f
    ldr     w2, [x1, #{version_at}]
    cmp     w2, #{version}
    b.ne    4f
    ldr     w2, [x1, #{kind_at}]
    cmp     w2, #{kind}
    b.ne    4f
    ldr     x1, [x1, #{uart_at}]
    .if {kind} == 1                 // Cadence: it may never have been on
    mov     w2, #0x14
    str     w2, [x1]
    .endif
    .if {kind} == 2                 // i.MX: it may never have been on (UCR1, UCR2)
    mov     w2, #1
    str     w2, [x1, #0x80]
    ldr     w2, [x1, #0x84]
    orr     w2, w2, #7
    str     w2, [x1, #0x84]
    .endif
    .if {kind} == 3                 // Meson: likewise (CONTROL)
    ldr     w2, [x1, #8]
    orr     w2, w2, #0x1000
    str     w2, [x1, #8]
    .endif
1:  ldrb    w2, [x0], #1
    mov     w4, #0x10000            // polls for room, then the byte is dropped
2:  from_uart w3, {full_at}
    sub     w4, w4, #1
    cbz     w4, 3f
    .if {full_is} == 1
    tbnz    w3, #{full}, 2b
    .else
    tbz     w3, #{full}, 2b
    .endif
    cbz     w2, 3f
    to_uart w2, {data_at}
    b       1b
3:  cbz     w4, 4f
    sub     w4, w4, #1
    from_uart w3, {idle_at}         // all bytes must be sent before power-off
    .if {idle_is} == 1
    tbz     w3, #{idle}, 3b
    .else
    tbnz    w3, #{idle}, 3b
    .endif

// PSCI SYSTEM_OFF, from EL1 by HVC and from EL2 by SMC. Where nothing handles the call, it is an
// exception: the vectors detect that EL2 is not up, and sleep.
4:  adrp    x2, vectors
    add     x2, x2, :lo12:vectors
    ldr     w0, =0x84000008
    mrs     x1, currentel
    cmp     x1, #8
    b.eq    5f
    b.hi    sleep_for_good          // no firmware to call from EL3
    msr     vbar_el1, x2
    isb
    hvc     #0
    b       sleep_for_good
5:  msr     vbar_el2, x2
    isb
    smc     #0
    b       sleep_for_good

said_level1:
    .asciz  "[el2] refused: exception-level: entered at EL1, must be entered at EL2\r\n"
said_level3:
    .asciz  "[el2] refused: exception-level: entered at EL3, must be entered at EL2\r\n"
said_too_high:
    .asciz  "[el2] refused: load-limit: loaded at or above 128 GiB\r\n"
said_host_only:
    .asciz  "[el2] refused: el2-host: the CPU's EL2 is for host extensions only (HCR_EL2.E2H is fixed to 1)\r\n"
    .balign 4
