//! System registers, barriers, and the few instructions that have no other name.

use core::arch::asm;

/// Reads a system register by name or by `S<op0>_<op1>_C<n>_C<m>_<op2>`.
#[macro_export]
macro_rules! mrs {
    ($register:literal) => {{
        let value: u64;
        // SAFETY: reading a system register at EL1 touches no memory that Rust knows of (I-EL1).
        unsafe {
            ::core::arch::asm!(concat!("mrs {}, ", $register), out(reg) value, options(nostack));
        }
        value
    }};
}

/// Writes a system register. Not for registers that change where memory is or who runs: those belong
/// to `mmu` and `vectors`.
#[macro_export]
macro_rules! msr {
    ($register:literal, $value:expr) => {{
        let value: u64 = $value;
        // SAFETY: callers write timer, interrupt and debug registers only (I-EL1).
        unsafe {
            ::core::arch::asm!(concat!("msr ", $register, ", {}"), in(reg) value, options(nostack));
        }
    }};
}

macro_rules! instruction {
    ($(#[$doc:meta])* $name:ident, $text:literal) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name() {
            // SAFETY: a barrier, a hint or a mask of interrupts; no register or memory changes.
            unsafe { asm!($text, options(nostack)) }
        }
    };
}

instruction!(
    /// Instruction synchronisation barrier.
    isb, "isb");
instruction!(
    /// Data synchronisation barrier, full system.
    dsb, "dsb sy");
instruction!(
    /// Sleeps until an interrupt is pending.
    wfi, "wfi");
instruction!(
    /// Sleeps until an event.
    wfe, "wfe");
instruction!(
    /// Invalidates, cleans, and does both by set and way, of set 0 in way 0 of the first level: to be without effect in a VM.
    maintain_by_set_and_way, "dc isw, xzr\ndc csw, xzr\ndc cisw, xzr");
instruction!(
    /// Tells the CPU that this is a loop that waits.
    cpu_yield, "yield");
instruction!(
    /// Sets the event register of all CPUs.
    sev, "sev");
instruction!(
    /// Opens the mask for interrupts (IRQ).
    irq_on, "msr daifclr, #2");
instruction!(
    /// Closes the mask for interrupts (IRQ).
    irq_off, "msr daifset, #2");
instruction!(
    /// Closes all masks: debug, SError, IRQ, FIQ.
    mask_all, "msr daifset, #15");

/// Makes a hypercall for the version of PSCI, and counts the two instructions behind it: 1 for the first one, 2 for the second.
#[inline(always)]
pub fn behind_a_call() -> u64 {
    let counted: u64;
    // SAFETY: a call that changes nothing, of which all registers that it may write are named.
    unsafe {
        core::arch::asm!(
            "mov {counted}, #0",
            "hvc #0",
            "add {counted}, {counted}, #1",
            "add {counted}, {counted}, #2",
            counted = out(reg) counted,
            inout("x0") 0x8400_0000_u64 => _,
            out("x1") _, out("x2") _, out("x3") _,
            options(nostack)
        );
    }
    counted
}

/// Sleeps with interrupts masked, so that none comes between the look at what it waits for and the WFI, and takes those that have
/// woken it.
#[inline(always)]
pub fn sleep() {
    wfi();
    irq_on();
    isb();
    irq_off();
}

/// Runs `f` with interrupts masked, then restores the mask.
pub fn masked<T>(f: impl FnOnce() -> T) -> T {
    let daif = mrs!("daif");
    irq_off();
    let value = f();
    msr!("daif", daif);
    value
}
