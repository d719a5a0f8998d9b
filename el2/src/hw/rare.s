// Exits off the fast path whose handlers may end the life of a VM: they save the guest's other registers to the frame as well, where managers find
// them. The functions that the vectors call branch here as their last instruction, so the registers still hold the guest's values.

    .macro save_and_go to
    .global rare_\to
rare_\to:
    stp     x19, x20, [x0, #152]
    stp     x21, x22, [x0, #168]
    stp     x23, x24, [x0, #184]
    stp     x25, x26, [x0, #200]
    stp     x27, x28, [x0, #216]
    str     x29, [x0, #232]
    b       rare_\to\()_exit
    .endm

// x0: state of the vCPU.
    .section .text.rare, "ax"
    save_and_go synchronous
    save_and_go beside
