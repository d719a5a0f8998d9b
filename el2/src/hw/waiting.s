// Entry of a CPU that has waited for an address instead of being started by firmware: like
// start_secondary_cpu, but without an index in x0. It finds its index by its MPIDR. A CPU that the
// plan does not have, because it waited at the same address as another one, sleeps.

    .section .text.head, "ax"
    .global start_waiting_cpu
start_waiting_cpu:
    msr     daifset, #0xf
    mov     x1, #1 << 31
    msr     hcr_el2, x1
    isb
    bl      enable_mmu
    mrs     x1, mpidr_el1
    ldr     x2, =0xff00ffffff       // affinity fields
    and     x1, x1, x2
    ldr     x2, =MPIDRS
    mov     x0, #0
1:  ldr     x3, [x2, x0, lsl #3]
    cmp     x3, x1
    b.eq    2f
    add     x0, x0, #1
    cmp     x0, #8
    b.lo    1b
    b       sleep_for_good
2:  ldr     x1, =ROOTS
    ldr     x1, [x1, x0, lsl #3]
    b       enter_private_map

    .section .bss.boot, "aw", @nobits
    .balign 8
    .global MPIDRS
MPIDRS:
    .skip   8 * 8
