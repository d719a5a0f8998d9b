// An EL2 program of known cost: 12 instructions to its guest, 6 for each of the guest's 1000 hypercalls.
// `exits.rs` holds its encoding, so that the test needs no cross assembler. To make it anew:
// aarch64-linux-gnu-as sample.s -o sample.o && aarch64-linux-gnu-objcopy -O binary sample.o sample.bin
        .org 0x000
start:  adr     x0, vectors
        msr     vbar_el2, x0
        adr     x1, stack
        mov     sp, x1
        msr     tpidr_el2, x1
        mov     x1, #0x80000000         // HCR_EL2.RW: the guest is AArch64
        msr     hcr_el2, x1
        mov     x1, #0x3c5              // EL1h, all masked
        msr     spsr_el2, x1
        adr     x1, guest
        msr     elr_el2, x1
        eret
        .org 0x080
handle: stp     x0, x1, [sp, #-16]!
        mrs     x0, esr_el2
        ldp     x0, x1, [sp], #16
        isb
        eret
        .org 0x100
guest:  mov     x0, #7
        bl      begin
        mov     x19, #1000
1:      hvc     #0
        subs    x19, x19, #1
        b.ne    1b
        mov     x0, #7
        bl      end
        hvc     #0                      // belongs to no figure
        mov     w0, #0x0008             // PSCI SYSTEM_OFF
        movk    w0, #0x8400, lsl #16
        smc     #0
        .org 0x180
begin:  ret
        .org 0x188
end:    ret
        .org 0x800
vectors:
        .org 0xc00
        b       handle
        .org 0x1000
stack:
