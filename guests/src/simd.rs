//! FP and SIMD registers, which the compiler does not use here: filled with a pattern and looked at, or to copy by.

core::arch::global_asm!(
    r#"
    .arch_extension fp
    .arch_extension simd
    .global simd_fill
simd_fill:
    .irp    n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    dup     v\n\().2d, x0
    add     x0, x0, x1
    .endr
    msr     fpcr, x2
    ret

    .global simd_damage
simd_damage:
    mov     x4, xzr
    .irp    n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    umov    x3, v\n\().d[0]
    eor     x3, x3, x0
    orr     x4, x4, x3
    umov    x3, v\n\().d[1]
    eor     x3, x3, x0
    orr     x4, x4, x3
    add     x0, x0, x1
    .endr
    mrs     x3, fpcr
    eor     x3, x3, x2
    orr     x0, x4, x3
    ret

    .global simd_copy
simd_copy:
    subs    x2, x2, #128
    b.lo    2f
1:  ld1     {{v0.16b, v1.16b, v2.16b, v3.16b}}, [x1], #64
    ld1     {{v4.16b, v5.16b, v6.16b, v7.16b}}, [x1], #64
    subs    x2, x2, #128
    st1     {{v0.16b, v1.16b, v2.16b, v3.16b}}, [x0], #64
    st1     {{v4.16b, v5.16b, v6.16b, v7.16b}}, [x0], #64
    b.hs    1b
    // Less than 128 are left, and so many say the lowest bits.
2:  tbz     x2, #6, 2f
    ld1     {{v0.16b, v1.16b, v2.16b, v3.16b}}, [x1], #64
    st1     {{v0.16b, v1.16b, v2.16b, v3.16b}}, [x0], #64
2:  tbz     x2, #5, 3f
    ldp     q0, q1, [x1], #32
    stp     q0, q1, [x0], #32
3:  tbz     x2, #4, 4f
    ldr     q0, [x1], #16
    str     q0, [x0], #16
4:  tbz     x2, #3, 5f
    ldr     d0, [x1], #8
    str     d0, [x0], #8
5:  tbz     x2, #2, 6f
    ldr     s0, [x1], #4
    str     s0, [x0], #4
6:  tbz     x2, #1, 7f
    ldr     h0, [x1], #2
    str     h0, [x0], #2
7:  tbz     x2, #0, 8f
    ldr     b0, [x1]
    str     b0, [x0]
8:  ret
"#
);

unsafe extern "C" {
    fn simd_fill(seed: u64, step: u64, control: u64);
    fn simd_damage(seed: u64, step: u64, control: u64) -> u64;
    fn simd_copy(to: *mut u8, from: *const u8, bytes: usize);
}

/// Difference between one register and the next: the registers of two seeds differ in every byte.
const STEP: u64 = 0x0101_0101_0101_0101;
/// FPCR: round towards zero, which is not the value after a reset.
const CONTROL: u64 = 3 << 22;

/// Opens FP and SIMD registers.
pub fn open() {
    // CPACR_EL1.FPEN
    let open = mrs!("cpacr_el1") | 3 << 20;
    msr!("cpacr_el1", open);
    crate::sysreg::isb();
}

/// Copies bytes upwards, by registers that [`open`] has opened. Others may write to both places meanwhile: the compiler knows nothing
/// of what is in memory that assembly accesses.
///
/// # Safety
///
/// The bytes at `from` can be read, those at `to` can be written, and are no others that Rust refers to.
pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's bytes, and no others. Normal memory takes unaligned accesses.
    unsafe { simd_copy(to, from, bytes) }
}

/// Opens FP and SIMD registers and fills them with a pattern made of `seed`.
pub fn fill(seed: u64) {
    open();
    // SAFETY: [I-EL1] nothing in a program has these registers for itself.
    unsafe { simd_fill(seed, STEP, CONTROL) }
}

/// Bits that are not as [`fill`] has left them, of all registers together; 0 if all are.
pub fn damage(seed: u64) -> u64 {
    // SAFETY: [I-EL1] reads registers only.
    unsafe { simd_damage(seed, STEP, CONTROL) }
}
