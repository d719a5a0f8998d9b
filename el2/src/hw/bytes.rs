//! Bytes of mapped memory: the functions that the compiler calls by name, zeroing of whole pages, copying and cleaning.

use super::sysreg::{dsb, read};

core::arch::global_asm!(include_str!("bytes.s"));

/// The minimum size of a cache line in bytes, by which `dc zva` and `dc civac` step.
const LINE: u64 = 64;

/// Zeroes whole pages, of which there is at least one. `CLEANED`: also cleans and invalidates them to the point of coherency, which is complete
/// after a barrier. Invalidates, because a guest writes with its caches off first: a line that
/// stayed in a cache would hide that later.
///
/// # Safety
/// The range is mapped for writing as Normal memory, and nobody holds a reference to it.
#[inline(always)]
pub(super) unsafe fn zero_lines<const CLEANED: bool>(target: u64, bytes: u64) {
    let end = target.wrapping_add(bytes);
    // If DC ZVA is allowed and zeroes a line of 64 bytes, as on most CPUs, it is used; else stores
    // are.
    let by_line = read!("dczid_el0") & 31 == 4;
    if by_line && !CLEANED {
        // SAFETY: [R-COPY-WINDOW] the caller's promise; eight lines divide a page, and there is one.
        unsafe {
            core::arch::asm!(
                "2: .rept 8", "dc zva, {0}", "add {0}, {0}, #64", ".endr", "cmp {0}, {1}", "b.lo 2b",
                inout(reg) target => _, in(reg) end, options(nostack)
            );
        }
    } else if by_line {
        // SAFETY: [R-COPY-WINDOW] the caller's promise; sixteen lines divide a page, and there is one.
        unsafe {
            core::arch::asm!(
                "2: .rept 16", "dc zva, {0}", "dc civac, {0}", "add {0}, {0}, #64", ".endr",
                "cmp {0}, {1}", "b.lo 2b",
                inout(reg) target => _, in(reg) end, options(nostack)
            );
        }
    } else {
        // SAFETY: [R-COPY-WINDOW] the caller's promise; a line divides a page, and there is one.
        unsafe {
            core::arch::asm!(
                "2: stp xzr, xzr, [{0}]", "stp xzr, xzr, [{0}, #16]",
                "stp xzr, xzr, [{0}, #32]", "stp xzr, xzr, [{0}, #48]", "dc civac, {0}",
                "add {0}, {0}, #64", "cmp {0}, {1}", "b.lo 2b",
                inout(reg) target => _, in(reg) end, options(nostack)
            );
        }
    }
}

/// Copies words between addresses that are multiples of 8.
///
/// # Safety
/// The source is mapped, the target for writing, both as Normal memory, and nobody holds a reference to the target.
#[inline(never)]
pub(super) unsafe fn copy_words(mut source: u64, mut target: u64, bytes: u64) {
    let end = source.wrapping_add(bytes & !7);
    let pairs = source.wrapping_add(bytes & !15);
    let lines = source.wrapping_add(bytes & !63);
    while source < lines {
        // SAFETY: [R-COPY-WINDOW] the caller's promise.
        unsafe {
            core::arch::asm!(
                "ldp {0}, {1}, [{4}], #16", "ldp {2}, {3}, [{4}], #16",
                "stp {0}, {1}, [{5}], #16", "stp {2}, {3}, [{5}], #16",
                "ldp {0}, {1}, [{4}], #16", "ldp {2}, {3}, [{4}], #16",
                "stp {0}, {1}, [{5}], #16", "stp {2}, {3}, [{5}], #16",
                out(reg) _, out(reg) _, out(reg) _, out(reg) _,
                inout(reg) source, inout(reg) target, options(nostack)
            );
        }
    }
    while source < pairs {
        // SAFETY: [R-COPY-WINDOW] the caller's promise.
        unsafe {
            core::arch::asm!(
                "ldp {0}, {1}, [{2}], #16", "stp {0}, {1}, [{3}], #16",
                out(reg) _, out(reg) _, inout(reg) source, inout(reg) target, options(nostack)
            );
        }
    }
    if source < end {
        // SAFETY: [R-COPY-WINDOW] the caller's promise.
        unsafe {
            core::arch::asm!("ldr {0}, [{1}]", "str {0}, [{2}]", out(reg) _, in(reg) source, in(reg) target, options(nostack));
        }
    }
}

/// Cleans and invalidates a range to the point of coherency.
///
/// # Safety
/// The range is mapped.
#[inline(never)]
pub(super) unsafe fn clean(address: u64, bytes: u64) {
    let mut at = address & !LINE.wrapping_sub(1);
    let end = address.wrapping_add(bytes);
    while at < end {
        // SAFETY: [R-COPY-WINDOW] cleaning changes no data; the rest is the caller's promise.
        unsafe { core::arch::asm!("dc civac, {0}", in(reg) at, options(nostack)) }
        at = at.wrapping_add(LINE);
    }
    dsb();
}
