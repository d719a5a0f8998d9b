//! Device registers: one load or store for each access, inside a mapped frame. Loads are LDAR, which
//! Cortex-A57 832075 asks for and which costs no instruction more.

/// A mapped frame of device registers.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    base: u64,
    size: u64,
}

impl Registers {
    /// A frame of no device; accesses do nothing.
    pub const NONE: Self = Self { base: 0, size: 0 };

    /// Creates the frame at the virtual address `base`.
    ///
    /// # Safety
    /// `size` bytes from `base` are mapped as device memory for as long as the value is used, and
    /// are registers of a device that EL2 owns or filters.
    pub const unsafe fn new(base: u64, size: u64) -> Self {
        Self { base, size }
    }

    /// Returns the virtual address of the frame.
    pub const fn base(self) -> u64 {
        self.base
    }

    /// Returns the part of the frame from an offset on.
    pub const fn behind(self, offset: u64) -> Self {
        Self {
            base: self.base.wrapping_add(offset),
            size: self.size.saturating_sub(offset),
        }
    }

    #[inline(always)]
    fn address(self, offset: u64, bytes: u64) -> Option<u64> {
        // Registers lie at multiples of their size. So a register that begins before the last such
        // multiple lies in the frame completely.
        let within = bytes.wrapping_neg();
        let offset = offset & within;
        if offset < self.size & within {
            Some(self.base.wrapping_add(offset))
        } else {
            None
        }
    }

    /// Reads a 32-bit register; 0 outside of the frame.
    #[inline(always)]
    pub fn read(self, offset: u64) -> u32 {
        let Some(address) = self.address(offset, 4) else {
            return 0;
        };
        let value: u32;
        // SAFETY: [R-MMIO] the address lies in the frame.
        unsafe {
            core::arch::asm!("ldar {:w}, [{}]", out(reg) value, in(reg) address, options(nostack, preserves_flags));
        }
        value
    }

    /// The same at an offset that the compiler knows, for ways on which each instruction counts: the frame's address is made once for several
    /// registers.
    #[cfg(feature = "gicv2")]
    #[inline(always)]
    pub fn read_at<const OFFSET: u64>(self) -> u32 {
        const { assert!(OFFSET < 4096) };
        if self.address(OFFSET, 4).is_none() {
            return 0;
        }
        let value: u64;
        // SAFETY: [R-MMIO] the address lies in the frame.
        unsafe {
            core::arch::asm!("add {value}, {base}, #{offset}", "ldar {value:w}, [{value}]", value = out(reg) value,
                base = in(reg) self.base, offset = const OFFSET, options(nostack, preserves_flags));
        }
        value as u32
    }

    /// The same without the order to what follows in memory, for a value that is only kept. Accesses to one device stay in their order
    /// (DDI 0487, B2.10.2, Device memory).
    #[cfg(feature = "gicv2")]
    #[inline(always)]
    pub fn read_relaxed_at<const OFFSET: u64>(self) -> u64 {
        const { assert!(OFFSET < 4 * 4096) };
        if self.address(OFFSET, 4).is_none() {
            return 0;
        }
        let value: u64;
        // SAFETY: [R-MMIO] the address lies in the frame.
        unsafe {
            core::arch::asm!("ldr {value:w}, [{base}, #{offset}]", value = out(reg) value, base = in(reg) self.base,
                offset = const OFFSET, options(nostack, preserves_flags));
        }
        value
    }

    /// Writes a 32-bit register at an offset that the compiler knows.
    #[cfg(feature = "gicv2")]
    #[inline(always)]
    pub fn write_at<const OFFSET: u64>(self, value: u32) {
        const { assert!(OFFSET < 4 * 4096) };
        if self.address(OFFSET, 4).is_none() {
            return;
        }
        // SAFETY: [R-MMIO] the address lies in the frame.
        unsafe {
            core::arch::asm!("str {value:w}, [{base}, #{offset}]", value = in(reg) value, base = in(reg) self.base,
                offset = const OFFSET, options(nostack, preserves_flags));
        }
    }

    /// Reads a 64-bit register; 0 outside of the frame.
    #[cfg(not(feature = "gicv2"))]
    #[inline(always)]
    pub fn read64(self, offset: u64) -> u64 {
        let Some(address) = self.address(offset, 8) else {
            return 0;
        };
        let value: u64;
        // SAFETY: [R-MMIO] the address lies in the frame.
        unsafe {
            core::arch::asm!("ldar {}, [{}]", out(reg) value, in(reg) address, options(nostack, preserves_flags));
        }
        value
    }

    /// Writes a 32-bit register.
    #[inline(always)]
    pub fn write(self, offset: u64, value: u32) {
        let Some(address) = self.address(offset, 4) else {
            return;
        };
        // SAFETY: [R-MMIO] the address lies in the frame.
        unsafe {
            core::arch::asm!("str {:w}, [{}]", in(reg) value, in(reg) address, options(nostack, preserves_flags));
        }
    }

    /// Writes one value to so many 32-bit registers, which follow each other; nothing if the frame has not all of them.
    pub fn fill(self, offset: u64, registers: u64, value: u32) {
        let last = offset.wrapping_add(registers.wrapping_mul(4).wrapping_sub(4));
        let (Some(mut address), Some(last)) = (self.address(offset, 4), self.address(last, 4))
        else {
            return;
        };
        while address <= last {
            // SAFETY: [R-MMIO] the address lies in the frame, between two that do.
            unsafe {
                core::arch::asm!("str {:w}, [{}], #4", in(reg) value, inout(reg) address, options(nostack));
            }
        }
    }

    /// Reads an 8-bit register; 0 outside of the frame.
    #[cfg(feature = "uart-ns16550")]
    #[inline(always)]
    pub fn read8(self, offset: u64) -> u8 {
        let Some(address) = self.address(offset, 1) else {
            return 0;
        };
        let value: u32;
        // SAFETY: [R-MMIO] the address lies in the frame.
        unsafe {
            core::arch::asm!("ldarb {:w}, [{}]", out(reg) value, in(reg) address, options(nostack, preserves_flags));
        }
        value as u8
    }

    /// Writes an 8-bit register.
    #[inline(always)]
    pub fn write8(self, offset: u64, value: u8) {
        let Some(address) = self.address(offset, 1) else {
            return;
        };
        // SAFETY: [R-MMIO] the address lies in the frame.
        unsafe {
            core::arch::asm!("strb {:w}, [{}]", in(reg) u32::from(value), in(reg) address, options(nostack, preserves_flags));
        }
    }

    /// Writes a 16-bit register.
    #[inline(always)]
    pub fn write16(self, offset: u64, value: u16) {
        let Some(address) = self.address(offset, 2) else {
            return;
        };
        // SAFETY: [R-MMIO] the address lies in the frame.
        unsafe {
            core::arch::asm!("strh {:w}, [{}]", in(reg) u32::from(value), in(reg) address, options(nostack, preserves_flags));
        }
    }

    /// Writes a 64-bit register.
    #[cfg(not(feature = "gicv2"))]
    #[inline(always)]
    pub fn write64(self, offset: u64, value: u64) {
        let Some(address) = self.address(offset, 8) else {
            return;
        };
        // SAFETY: [R-MMIO] the address lies in the frame.
        unsafe {
            core::arch::asm!("str {}, [{}]", in(reg) value, in(reg) address, options(nostack, preserves_flags));
        }
    }
}
