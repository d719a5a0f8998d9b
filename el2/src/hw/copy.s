// A copy between memories of VMs, 128 bytes at a time. For Normal memory only, which may be accessed at any alignment.

    .arch_extension fp
    .arch_extension simd

    .section .text.copy_mapped, "ax"

// x0: destination; x1: source; x2: number of bytes. All vector registers are the vCPU's that was here last: they have at the
// end what they had.
    .global copy_mapped
copy_mapped:
    cmp     x2, #64
    b.lo    memcpy
    stp     q0, q1, [sp, #-64]!
    stp     q2, q3, [sp, #32]
    subs    x2, x2, #128
    b.lo    2f
1:  ld1     {v0.16b, v1.16b, v2.16b, v3.16b}, [x1], #64
    st1     {v0.16b, v1.16b, v2.16b, v3.16b}, [x0], #64
    ld1     {v0.16b, v1.16b, v2.16b, v3.16b}, [x1], #64
    st1     {v0.16b, v1.16b, v2.16b, v3.16b}, [x0], #64
    subs    x2, x2, #128
    b.hs    1b
2:  tbz     x2, #6, 3f              // the low bits of the remaining count have not changed
    ld1     {v0.16b, v1.16b, v2.16b, v3.16b}, [x1], #64
    st1     {v0.16b, v1.16b, v2.16b, v3.16b}, [x0], #64
3:  ldp     q2, q3, [sp, #32]
    ldp     q0, q1, [sp], #64
    ands    x2, x2, #63
    b.ne    memcpy
    ret
