//! FP and SIMD registers, which the programs themselves do not use: filled with a pattern, and looked at.

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
"#
);

unsafe extern "C" {
    fn simd_fill(seed: u64, step: u64, control: u64);
    fn simd_damage(seed: u64, step: u64, control: u64) -> u64;
}

/// Difference between one register and the next: the registers of two seeds differ in every byte.
const STEP: u64 = 0x0101_0101_0101_0101;
/// FPCR: round towards zero, which is not the value after a reset.
const CONTROL: u64 = 3 << 22;

/// Opens FP and SIMD registers and fills them with a pattern made of `seed`.
pub fn fill(seed: u64) {
    // CPACR_EL1.FPEN
    let open = mrs!("cpacr_el1") | 3 << 20;
    msr!("cpacr_el1", open);
    crate::sysreg::isb();
    // SAFETY: [I-EL1] nothing in a program has these registers for itself.
    unsafe { simd_fill(seed, STEP, CONTROL) }
}

/// Bits that are not as [`fill`] has left them, of all registers together; 0 if all are.
pub fn damage(seed: u64) -> u64 {
    // SAFETY: [I-EL1] reads registers only.
    unsafe { simd_damage(seed, STEP, CONTROL) }
}
