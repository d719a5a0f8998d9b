// The functions that the compiler calls to copy, fill and compare values, 64 bytes at a time, and 8: the compiler's
// own versions take an instruction or more for every byte. For Normal memory only, which may be
// accessed at any alignment.

    .section .text.bytes, "ax"

// x0: destination; x1: source; x2: number of bytes. Returns x0.
    .global memcpy
memcpy:
    mov     x3, x0
    subs    x2, x2, #64
    b.lo    2f
1:  ldp     x4, x5, [x1], #64
    ldp     x6, x7, [x1, #-48]
    ldp     x8, x9, [x1, #-32]
    ldp     x10, x11, [x1, #-16]
    stp     x4, x5, [x3], #64
    stp     x6, x7, [x3, #-48]
    stp     x8, x9, [x3, #-32]
    stp     x10, x11, [x3, #-16]
    subs    x2, x2, #64
    b.hs    1b
2:  tbz     x2, #5, 2f              // the low bits of the remaining count have not changed
    ldp     x4, x5, [x1], #32
    ldp     x6, x7, [x1, #-16]
    stp     x4, x5, [x3], #32
    stp     x6, x7, [x3, #-16]
2:  tbz     x2, #4, 3f
    ldp     x4, x5, [x1], #16
    stp     x4, x5, [x3], #16
3:  tbz     x2, #3, 4f
    ldr     x4, [x1], #8
    str     x4, [x3], #8
4:  tbz     x2, #2, 5f
    ldr     w4, [x1], #4
    str     w4, [x3], #4
5:  tbz     x2, #1, 6f
    ldrh    w4, [x1], #2
    strh    w4, [x3], #2
6:  tbz     x2, #0, 7f
    ldrb    w4, [x1]
    strb    w4, [x3]
7:  ret

// x0: destination; w1: the byte to fill with; x2: number of bytes. Returns x0.
    .global memset
memset:
    mov     x3, x0
    and     x1, x1, #0xff
    orr     x1, x1, x1, lsl #8
    orr     x1, x1, x1, lsl #16
    orr     x1, x1, x1, lsl #32
    subs    x2, x2, #64
    b.lo    2f
1:  stp     x1, x1, [x3], #64
    stp     x1, x1, [x3, #-48]
    stp     x1, x1, [x3, #-32]
    stp     x1, x1, [x3, #-16]
    subs    x2, x2, #64
    b.hs    1b
2:  tbz     x2, #5, 2f
    stp     x1, x1, [x3], #32
    stp     x1, x1, [x3, #-16]
2:  tbz     x2, #4, 3f
    stp     x1, x1, [x3], #16
3:  tbz     x2, #3, 4f
    str     x1, [x3], #8
4:  tbz     x2, #2, 5f
    str     w1, [x3], #4
5:  tbz     x2, #1, 6f
    strh    w1, [x3], #2
6:  tbz     x2, #0, 7f
    strb    w1, [x3]
7:  ret

// x0, x1: what is compared; x2: number of bytes. Returns less than 0, 0 or more than 0, by the first byte that differs.
    .global memcmp
memcmp:
    subs    x2, x2, #8
    b.lo    2f
1:  ldr     x3, [x0], #8
    ldr     x4, [x1], #8
    cmp     x3, x4
    b.ne    5f
    subs    x2, x2, #8
    b.hs    1b
2:  adds    x2, x2, #8
    b.eq    4f
3:  ldrb    w3, [x0], #1
    ldrb    w4, [x1], #1
    subs    w5, w3, w4
    b.ne    4f
    subs    x2, x2, #1
    b.ne    3b
4:  csel    w0, wzr, w5, eq
    ret
5:  rev     x3, x3
    rev     x4, x4
    cmp     x3, x4
    mov     w0, #1
    cneg    w0, w0, lo
    ret
