// The start of the image: the arm64 Linux header (Documentation/arch/arm64/booting.rst of Linux),
// then the way from "MMU off, anywhere in memory" to EL2's own map.

    .section .text.head, "ax"
    .global _head
_head:
    b       start_primary_cpu
    .long   0
    .quad   0                       // text_offset: written by the image builder
    .quad   0                       // image_size: written by the image builder
    .quad   0x2                     // little endian, 4 KiB pages, near the start of the memory
    .quad   0, 0, 0
    .ascii  "ARM\x64"
    .long   0

// Entry of the boot CPU. x0: address of the device tree.
start_primary_cpu:
    mrs     x1, currentel
    cmp     x1, #8
    b.ne    wrong_level
    msr     daifset, #0xf
    mov     x20, x0
    msr     tpidr_el2, xzr
    adr     x21, _head
    mov     x1, #1 << 31            // HCR: without host extensions, whatever firmware has set
    msr     hcr_el2, x1
    isb
    mrs     x1, hcr_el2
    tbnz    x1, #34, host_only

    // Level 1: EL2's gigabyte, and the gigabyte that this code runs in, until the jump.
    adrp    x1, BOOT_LEVEL1
    add     x1, x1, :lo12:BOOT_LEVEL1
    adrp    x2, BOOT_LEVEL2
    add     x2, x2, :lo12:BOOT_LEVEL2
    orr     x3, x2, #3
    str     x3, [x1, #128 * 8]
    lsr     x3, x21, #30
    cmp     x3, #128
    b.hs    too_high                // LOAD_LIMIT: the two gigabytes would be one
    lsl     x4, x3, #30
    ldr     x5, =0x7c1              // block: valid, AF, inner shareable, read-only, Normal
    orr     x4, x4, x5
    str     x4, [x1, x3, lsl #3]

    // Level 2 entry 0 and level 3: the image, page by page with the permissions of its parts.
    adrp    x3, IMAGE_LEVEL3
    add     x3, x3, :lo12:IMAGE_LEVEL3
    orr     x4, x3, #3
    str     x4, [x2]
    adrp    x5, __text_end
    adrp    x6, __rodata_end
    adrp    x7, __data_end
    ldr     x10, =0x7c3             // page: read-only
    ldr     x11, =0x743             // page: read and write
    mov     x12, #1 << 54           // execute never
    orr     x8, x21, x10            // text
    orr     x5, x5, x10
1:  str     x8, [x3], #8
    add     x8, x8, #4096
    cmp     x8, x5
    b.lo    1b
    orr     x10, x10, x12           // rodata
    orr     x8, x8, x12
    orr     x6, x6, x10
1:  str     x8, [x3], #8
    add     x8, x8, #4096
    cmp     x8, x6
    b.lo    1b
    orr     x11, x11, x12           // data
    and     x8, x8, #~0xfff
    orr     x8, x8, x11
    orr     x7, x7, x11
1:  str     x8, [x3], #8
    add     x8, x8, #4096
    cmp     x8, x7
    b.lo    1b
    orr     x8, x8, x10             // after the data: the largest plan, read-only
    add     x9, x3, #{plan_pages} * 8
1:  str     x8, [x3], #8
    add     x8, x8, #4096
    cmp     x3, x9
    b.lo    1b

    // The tables were written past the caches: no stale line of them may be in the caches.
    dmb     sy
    adrp    x3, BOOT_LEVEL1
    add     x3, x3, :lo12:BOOT_LEVEL1
    add     x4, x3, #3 * 4096
    mrs     x5, ctr_el0             // DminLine: words of the smallest line, as a power of two
    ubfx    x5, x5, #16, #4
    mov     x6, #4
    lsl     x5, x6, x5
1:  .rept   4                       // a table has more lines, which are a power of two
    dc      ivac, x3
    add     x3, x3, x5
    .endr
    cmp     x3, x4
    b.lo    1b
    dsb     sy

    bl      enable_mmu
    ldr     x2, =BOOT_STACK_TOP
    mov     sp, x2
    mov     x0, x20
    mov     x1, x21
    mov     x29, xzr
    ldr     x2, =primary
    br      x2

// Entry of a CPU that PSCI starts. x0: index of the pCPU, which is the context argument of CPU_ON.
    .global start_secondary_cpu
start_secondary_cpu:
    msr     daifset, #0xf
    mov     x20, x0
    mov     x1, #1 << 31
    msr     hcr_el2, x1
    isb
    bl      enable_mmu
    mov     x0, x20
    ldr     x1, =ROOTS
    ldr     x1, [x1, x20, lsl #3]
    b       enter_private_map

// Turns the MMU on with the boot map and returns to the caller's virtual address.
enable_mmu:
    mrs     x1, id_aa64mmfr0_el1
    and     x1, x1, #7              // PARange, at most 52 bits
    cmp     x1, #5
    mov     x2, #5
    csel    x1, x1, x2, lo
    ldr     x2, =0x80803519         // TCR: 39 bits, 4 KiB, inner shareable, write-back
    orr     x1, x2, x1, lsl #16
    msr     tcr_el2, x1
    ldr     x1, =0x4404ff           // MAIR: 0 Normal write-back, 1 Device-nGnRE, 2 Normal non-cacheable
    msr     mair_el2, x1
    adrp    x1, BOOT_LEVEL1
    add     x1, x1, :lo12:BOOT_LEVEL1
    msr     ttbr0_el2, x1
    ldr     x1, =vectors
    msr     vbar_el2, x1
    ic      iallu
    tlbi    alle2
    dsb     nsh
    isb
    ldr     x1, =0x30cd183d         // SCTLR: RES1, MMU, caches, stack alignment, WXN
    msr     sctlr_el2, x1
    isb
    adr     x1, _head
    ldr     x2, =_head
    sub     x2, x2, x1
    add     x30, x30, x2
    ret

// x0: index of the pCPU, x1: physical address of its root table. The stack lies just below the
// state of the pCPU's idle thread.
    .global enter_private_map
enter_private_map:
    msr     ttbr0_el2, x1
    isb
    tlbi    alle2
    dsb     nsh
    isb
    ldr     x1, =0x2001000000 + 3 * 4096
    add     x1, x1, x0, lsl #21
    mov     sp, x1
    msr     tpidr_el2, x1
    mov     x1, sp
    mov     x29, xzr
    mov     x30, xzr
    b       pcpu_main

// Goes on in a copy of the image. x0: physical address of the root of a boot map that has the copy where the image was, x1: address at which
// the image was loaded. It runs at the physical address meanwhile, which is the same in both maps, and uses no stack before it has copied it.
    .global enter_copy
enter_copy:
    ldr     x2, =_head
    sub     x1, x1, x2              // from virtual to physical
    mov     x7, x30
    adr     x30, 1f
    add     x30, x30, x1
    ret
1:  msr     ttbr0_el2, x0
    isb
    tlbi    alle2
    dsb     nsh
    ic      iallu
    dsb     nsh
    isb
    ldr     x2, =BOOT_STACK_TOP
    add     x3, x2, x1              // the stack so far: the first map has it at its physical address, too
    mov     x4, sp
1:  ldp     x5, x6, [x3, #-16]!
    stp     x5, x6, [x2, #-16]!
    cmp     x2, x4
    b.hi    1b
    mov     x30, x7
    ret

// Memory that the code above needs before any other exists. The three tables of the boot map are
// adjacent.
    .section .bss.boot, "aw", @nobits
    .balign 4096
    .global BOOT_LEVEL1, BOOT_LEVEL2, IMAGE_LEVEL3, VMS_LEVEL3, BOOT_STACK, BOOT_STACK_TOP, ROOTS
BOOT_LEVEL1:
    .skip   4096
BOOT_LEVEL2:
    .skip   4096
IMAGE_LEVEL3:
    .skip   4096
VMS_LEVEL3:
    .skip   4096
BOOT_STACK:
    .skip   16384
BOOT_STACK_TOP:
ROOTS:
    .skip   8 * 8
