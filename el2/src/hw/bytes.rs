//! Bytes of mapped memory: the functions that the compiler calls by name, and zeroing of whole
//! pages.

use super::sysreg::read;

core::arch::global_asm!(include_str!("bytes.s"));

/// Zeroes whole pages, and cleans and invalidates them to the point of coherency, which is complete
/// after a barrier. Invalidates, because a guest writes with its caches off first: a line that
/// stayed in a cache would hide that later.
///
/// # Safety
/// The range is mapped for writing as Normal memory, and nobody holds a reference to it.
#[inline(always)]
pub(super) unsafe fn zero_lines(target: u64, bytes: u64) {
    let mut at = target;
    let end = target.wrapping_add(bytes);
    // If DC ZVA is allowed and zeroes a line of 64 bytes, as on most CPUs, it is used; else stores
    // are.
    let by_line = read!("dczid_el0") & 31 == 4;
    while at < end {
        if by_line {
            // SAFETY: [R-COPY-WINDOW] the caller's promise; eight lines divide a page.
            unsafe {
                core::arch::asm!(
                    ".rept 8", "dc zva, {0}", "dc civac, {0}", "add {0}, {0}, #64", ".endr",
                    inout(reg) at, options(nostack)
                );
            }
        } else {
            // SAFETY: [R-COPY-WINDOW] the caller's promise; eight lines divide a page.
            unsafe {
                core::arch::asm!(
                    ".rept 8", "stp xzr, xzr, [{0}]", "stp xzr, xzr, [{0}, #16]",
                    "stp xzr, xzr, [{0}, #32]", "stp xzr, xzr, [{0}, #48]", "dc civac, {0}",
                    "add {0}, {0}, #64", ".endr",
                    inout(reg) at, options(nostack)
                );
            }
        }
    }
}
