//! The first program of a Linux whose boot is measured: says what the virtual counter showed when the
//! program began (`init: 864263376`), and powers off. It does nothing else, so that what is measured is
//! the kernel. Not a guest by itself: `initrd = "guest:init"` makes it the `/init` of an archive.
#![no_std]
#![no_main]
#![allow(unsafe_code)]

// A program of Linux: the kernel starts it at EL0 with a stack.
#[cfg(target_os = "none")]
core::arch::global_asm!(include_str!("start.s"));

#[cfg(target_os = "none")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
