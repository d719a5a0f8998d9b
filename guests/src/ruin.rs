//! Ways in which a guest ruins itself, for the programs that show that it ruins nobody else.

use crate::board::Range;
use crate::memory::Page;
use crate::sysreg::{dsb, isb, mask_all};
use crate::{mmio, mmu};
use core::arch::{asm, global_asm};

/// An address at which no guest has anything: near the end of the 39-bit space.
pub const NOWHERE: usize = 0x7f_f000_0000;

/// Sends all later exceptions to `address`. The program's own tables let instructions be fetched from there: what
/// is above EL1 has to say no, or they would fault at EL1 for ever.
pub fn vectors_at(address: usize) {
    if mmu::is_on() {
        mmu::execute_everywhere();
    }
    // SAFETY: nothing of the program relies on its vectors any more: that is what callers want.
    unsafe { asm!("msr vbar_el1, {}", in(reg) address, options(nostack)) };
    isb();
}

/// Executes an undefined instruction.
pub fn undefined() {
    // SAFETY: raises an exception and changes nothing else.
    unsafe { asm!("udf #0", options(nostack)) };
}

/// An exception that no vector takes.
pub fn crash() -> ! {
    vectors_at(NOWHERE);
    undefined();
    spin()
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

/// Spins, all masks closed, with a loop of one instruction at the start of a page of RAM, behind a page in which the last word is WFI: `first`, memory that
/// the program may write.
pub fn spin_behind_wfi(first: usize, page: &Page) -> ! {
    /// `wfi`; `b .`
    const CODE: [u32; 2] = [0xd503_207f, 0x1400_0000];
    /// A GiB in which no guest has anything.
    const GIB: usize = 500;
    mmio::write32(first + 4092, CODE[0]);
    mmio::write32(page.base(), CODE[1]);
    // SAFETY: cleans a line of that page, and drops cached instructions; those in memory are the same.
    unsafe {
        asm!("dc cvau, {}", "dsb ish", "ic ialluis", "dsb ish", "isb", in(reg) page.base(), options(nostack));
    }
    let place = mmu::one_behind_the_other(GIB, first, page.base());
    mask_all();
    // SAFETY: this CPU leaves the program for good.
    unsafe { asm!("br {}", in(reg) place, options(noreturn)) }
}

// Code that needs nothing but itself: it runs where it was copied to, without translation, without a stack.
global_asm!(
    r#"
    .macro translation_off
    mrs     x6, sctlr_el1
    bic     x6, x6, #1              // MMU
    bic     x6, x6, #4              // data cache
    bic     x6, x6, #4096           // instruction cache
    msr     sctlr_el1, x6
    isb
    .endm

    .section .text.refuge, "ax"
    .balign 64
    .global refuge_start
refuge_start:
    // x0 = address, x1 = end of what is overwritten; x2 = address, x3 = end of what is spared;
    // x4 = what is written; x5 = where no vectors are.
    translation_off
1:  cmp     x0, x1
    b.hs    4f
    cmp     x0, x2
    b.lo    2f
    cmp     x0, x3
    b.lo    3f
2:  str     x4, [x0]
3:  add     x0, x0, #8
    b       1b
4:  dsb     sy
    ic      iallu
    dsb     sy
    msr     vbar_el1, x5
    isb
    udf     #0
    .balign 64
    .global refuge_busy
refuge_busy:
    // For ever: store w1 to x0 if that is not 0, x2 to ICC_SGI1R_EL1 if that is not 0, sleep if x3 is not 0.
    translation_off
5:  cbz     x0, 6f
    str     w1, [x0]
6:  cbz     x2, 7f
    msr     S3_0_C12_C11_5, x2
7:  cbz     x3, 5b
    wfi
    b       5b
    .balign 64
    .global refuge_end
refuge_end:
"#
);

unsafe extern "C" {
    static refuge_start: u8;
    static refuge_busy: u8;
    static refuge_end: u8;
}

/// Endless loop of a CPU in a [`Refuge`].
#[derive(Clone, Copy, Debug)]
pub enum Busy {
    /// It runs in a loop.
    Spins,
    /// It sleeps, again and again.
    Sleeps,
    /// It stores this word to this address (GICv2: GICD_SGIR).
    Stores(usize, u32),
    /// It writes this to ICC_SGI1R_EL1 (GICv3).
    Sends(u64),
}

/// A page with code that needs no other memory, not even tables: from there everything else can be overwritten.
#[derive(Clone, Copy, Debug)]
pub struct Refuge(usize);

impl Refuge {
    /// Copies the code to a page.
    pub fn new(page: &Page) -> Self {
        let start = (&raw const refuge_start).addr();
        let size = (&raw const refuge_end).addr() - start;
        for offset in (0..size).step_by(8) {
            let from = core::ptr::with_exposed_provenance::<u64>(start + offset);
            let to = core::ptr::with_exposed_provenance_mut::<u64>(page.base() + offset);
            // SAFETY: between two labels of the program's text, which is readable and aligned to 64 bytes.
            let word = unsafe { from.read_volatile() };
            // SAFETY: a word of RAM that nothing else uses, aligned (I-FREE).
            unsafe { to.write_volatile(word) };
            // SAFETY: cleans a line of that page, so that a fetch without caches finds it.
            unsafe { asm!("dc cvac, {}", in(reg) page.base() + offset, options(nostack)) };
        }
        dsb();
        // SAFETY: drops cached instructions; those in memory are the same.
        unsafe { asm!("ic ialluis", "dsb sy", "isb", options(nostack)) };
        Self(page.base())
    }

    /// The one that was made in the page at this address, maybe by another CPU.
    pub fn at(page: usize) -> Self {
        Self(page)
    }

    /// Overwrites all of `range` but this page with `word`, then takes an exception for which there is no
    /// vector.
    pub fn wreck(self, range: Range, word: u64) -> ! {
        mask_all();
        // SAFETY: the program ends here: that is what callers want.
        unsafe {
            asm!("br {}", in(reg) self.0, in("x0") range.base, in("x1") range.end(), in("x2") self.0,
                 in("x3") self.0 + 4096, in("x4") word, in("x5") NOWHERE, options(noreturn))
        }
    }

    /// Goes there and never comes back, all masks closed.
    pub fn stay(self, busy: Busy) -> ! {
        mask_all();
        let entry = self.0 + (&raw const refuge_busy).addr() - (&raw const refuge_start).addr();
        let (address, word, send, sleep) = match busy {
            Busy::Spins => (0, 0, 0, 0),
            Busy::Sleeps => (0, 0, 0, 1),
            Busy::Stores(address, word) => (address, word, 0, 0),
            Busy::Sends(value) => (0, 0, value, 0),
        };
        // SAFETY: this CPU leaves the program for good.
        unsafe {
            asm!("br {}", in(reg) entry, in("x0") address, in("x1") u64::from(word), in("x2") send,
                 in("x3") sleep, options(noreturn))
        }
    }
}
