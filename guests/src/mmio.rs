//! Device registers: each access is one plain load or store of the stated width, because anything else
//! (pairs, write-back) reaches a hypervisor without a syndrome that tells what it was.

use core::arch::asm;

macro_rules! access {
    ($read:ident, $write:ident, $type:ty, $load:literal, $store:literal) => {
        /// Reads the register at `address` with one load of this width.
        #[inline(always)]
        pub fn $read(address: usize) -> $type {
            let value: $type;
            // SAFETY: a read of a device register; devices and RAM of the program never overlap
            // (I-MMIO). A fault goes to the vectors.
            unsafe {
                asm!(concat!($load, ", [{a}]"), a = in(reg) address, v = lateout(reg) value,
                     options(nostack, preserves_flags));
            }
            value
        }

        /// Writes the register at `address` with one store of this width.
        #[inline(always)]
        pub fn $write(address: usize, value: $type) {
            // SAFETY: a write of a device register; devices and RAM of the program never overlap
            // (I-MMIO). A fault goes to the vectors.
            unsafe {
                asm!(concat!($store, ", [{a}]"), a = in(reg) address, v = in(reg) value,
                     options(nostack, preserves_flags));
            }
        }
    };
}

access!(read8, write8, u8, "ldrb {v:w}", "strb {v:w}");
access!(read16, write16, u16, "ldrh {v:w}", "strh {v:w}");
access!(read32, write32, u32, "ldr {v:w}", "str {v:w}");
access!(read64, write64, u64, "ldr {v:x}", "str {v:x}");
