//! Ways in which a guest ruins itself, for the programs that show that it ruins nobody else.

use crate::sysreg::{dsb, isb};
use core::arch::asm;

/// An address at which no guest has anything: near the end of the 39-bit space.
pub const NOWHERE: usize = 0x7f_f000_0000;

/// Sends all later exceptions to `address`.
pub fn vectors_at(address: usize) {
    // SAFETY: nothing of the program relies on its vectors any more: that is what callers want.
    unsafe { asm!("msr vbar_el1, {}", in(reg) address, options(nostack)) };
    isb();
}

/// Executes an undefined instruction.
pub fn undefined() {
    // SAFETY: raises an exception and changes nothing else.
    unsafe { asm!("udf #0", options(nostack)) };
}

/// Moves the translation tables to `address`, so that not even the next instruction can be fetched.
pub fn tables_at(address: usize) -> ! {
    dsb();
    // SAFETY: the program ends here: that is what callers want.
    unsafe {
        asm!("msr ttbr0_el1, {}", "tlbi vmalle1", "dsb sy", "isb", "2: b 2b", in(reg) address,
             options(nostack, noreturn))
    }
}

/// Closes all masks and never does anything again.
pub fn spin() -> ! {
    crate::sysreg::mask_all();
    loop {
        // SAFETY: does nothing. A loop without effects may not stay a loop.
        unsafe { asm!("nop", options(nostack)) };
    }
}
