//! Runtime for small programs at EL1: start-up, exception vectors, faults that are expected, several
//! CPUs, GICv2 and GICv3, generic timer, PL011, PSCI, virtio devices, test reports. The programs are in `src/bin/`, one for each claim.
//!
//! A program names its functions with [`guest!`] and gets the [`Board`] that the device tree
//! describes. Everything `unsafe` is in this library; the programs have none.
//!
//! # What the `SAFETY` comments rely on
//!
//! * I-EL1: a program owns its whole virtual machine, runs at EL1, and has no other code in it. What it does to the machine's registers harms nobody but itself.
//! * I-BOOT: what starts a program loads it where it is linked, and puts a device tree where x0 says
//!   (or, if x0 is 0, maybe at the start of the RAM), which nothing changes afterwards.
//! * I-ONCE: `start_rust` runs once, before `main`, before any interrupt and before any other CPU.
//! * I-MMIO: addresses given to `mmio` are device registers, never memory that Rust uses.
//! * I-SHARED: memory shared with other VMs is touched through atomics only.
//! * I-AREA: an `Area` is memory that the device tree names for devices of a backend and for nothing else, or pages that are never given back. It is
//!   mapped as RAM as long as the program runs, and touched through atomics and by assembly only.
//! * I-FREE: pages that `memory::free_pages` hands out hold neither program, stack nor device tree.
//! * I-PROBE: code that `probe` runs returns, keeps SP and x30, and leaves Rust's memory alone.
#![cfg_attr(target_os = "none", no_std)]
#![allow(unsafe_code)]

#[macro_use]
pub mod sysreg;

pub mod alive;
pub mod area;
pub mod backend;
pub mod board;
pub mod calls;
pub mod check;
pub mod control;
pub mod counted;
pub mod cpu;
pub mod debug;
pub mod dumped;
pub mod entry;
pub mod figures;
pub mod gic;
pub mod kernels;
pub mod marks;
pub mod memory;
pub mod misdeeds;
pub mod mmio;
pub mod mmu;
pub mod periods;
pub mod pl061;
pub mod pmu;
pub mod power;
pub mod probe;
pub mod random;
pub mod record;
pub mod ruin;
pub mod shared;
pub mod simd;
pub mod start;
pub mod state;
pub mod timer;
pub mod uart;
pub mod vectors;
pub mod virtio;

pub use board::Board;
pub use start::crash_on_panic;

/// Declares a program.
///
/// * `main = f`: `fn(&'static Board)`; the guest powers off when it returns.
/// * `irq = f`: `fn(u64)`, called for each interrupt with the counter value that the vector read
///   first. It acknowledges and ends the interrupt itself.
/// * `mmu = off`: starts without translation: all memory is then Device memory, so the program must
///   not make unaligned or exclusive accesses.
/// * `begin = state`: each CPU first stores what it finds, for [`state::begun`].
#[macro_export]
macro_rules! guest {
    (main = $main:path $(, irq = $irq:path)? $(, mmu = $mmu:ident)? $(, begin = $begin:ident)? $(,)?) => {
        #[unsafe(no_mangle)]
        fn guest_main(board: &'static $crate::Board) {
            $main(board)
        }
        #[unsafe(no_mangle)]
        fn guest_irq(entered: u64) {
            let handlers: &[fn(u64)] = &[$($irq)?];
            match handlers.first() {
                Some(handler) => handler(entered),
                None => panic!("interrupt without a handler"),
            }
        }
        #[unsafe(no_mangle)]
        static GUEST_MMU: u8 = $crate::guest!(@mmu $($mmu)?);
        $($crate::guest!(@begin $begin);)?
    };
    (@begin state) => {
        ::core::arch::global_asm!(".weak guest_begin", ".set guest_begin, state_begin");
    };
    (@mmu off) => { 0 };
    (@mmu) => { 1 };
}
