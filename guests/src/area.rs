//! Memory that this machine shares with EL2, or that outlives it: windows of devices, the page of news, disks.

use crate::board::Range;
use crate::simd;
use bulkhead_service::memory::{Memory, Outside};
use core::arch::asm;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// A piece of memory that others write, too. Only [`backend::find`](crate::backend::find) and
/// [`Raw::new`](crate::virtio::raw::Raw::new) make one.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    base: usize,
    bytes: usize,
}

impl Area {
    /// The memory of a node of the device tree; `None` if it is not made of whole words, or if the address space ends in it.
    pub(crate) fn new(range: Range) -> Option<Self> {
        let whole = range.base.is_multiple_of(8) && range.size.is_multiple_of(8);
        let inside = range.base.checked_add(range.size).is_some();
        if !whole || !inside || range.base == 0 || range.size == 0 {
            return None;
        }
        simd::open();
        Some(Self {
            base: range.base,
            bytes: range.size,
        })
    }

    /// Its address.
    pub fn address(&self) -> u64 {
        self.base as u64
    }

    /// Where the byte `at` is, of which `bytes` are to be accessed.
    #[inline(always)]
    fn place(&self, at: u64, bytes: u64) -> Result<*mut u8, Outside> {
        if !self.holds(at, bytes) {
            return Err(Outside);
        }
        Ok(self.address_of(at))
    }

    /// Where the word `at` is. There is room for one: an area has 8 bytes at least.
    #[inline(always)]
    fn word<T>(&self, at: u64) -> Result<*mut T, Outside> {
        let last = self.bytes.wrapping_sub(size_of::<T>());
        if at > last as u64 || !at.is_multiple_of(align_of::<T>() as u64) {
            return Err(Outside);
        }
        Ok(self.address_of(at))
    }

    /// The address of something that is inside, so that the sum does not wrap.
    #[inline(always)]
    fn address_of<T>(&self, at: u64) -> *mut T {
        core::ptr::with_exposed_provenance_mut(self.base.wrapping_add(at as usize))
    }
}

macro_rules! words {
    ($load:ident, $store:ident, $type:ty, $atomic:ty) => {
        #[inline(always)]
        fn $load(&self, at: u64) -> Result<$type, Outside> {
            let word = self.word::<$type>(at)?;
            // SAFETY: an aligned word of an area, which is there as long as the program (I-AREA).
            Ok(unsafe { <$atomic>::from_ptr(word) }.load(Relaxed))
        }

        #[inline(always)]
        fn $store(&self, at: u64, value: $type) -> Result<(), Outside> {
            let word = self.word::<$type>(at)?;
            // SAFETY: an aligned word of an area, which is there as long as the program (I-AREA).
            unsafe { <$atomic>::from_ptr(word) }.store(value, Relaxed);
            Ok(())
        }
    };
}

impl Memory for Area {
    #[inline(always)]
    fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    words!(load16, store16, u16, AtomicU16);
    words!(load32, store32, u32, AtomicU32);
    words!(load64, store64, u64, AtomicU64);

    fn swap64(&self, at: u64, value: u64) -> Result<u64, Outside> {
        let word = self.word::<u64>(at)?;
        // SAFETY: an aligned word of an area, which is there as long as the program (I-AREA).
        Ok(unsafe { AtomicU64::from_ptr(word) }.swap(value, Relaxed))
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Outside> {
        let from = self.place(at, into.len() as u64)?;
        // SAFETY: the bytes are inside the area (I-AREA), and inside the slice.
        unsafe { simd::copy(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), Outside> {
        let to = self.place(at, from.len() as u64)?;
        // SAFETY: the bytes are inside the slice, and inside the area (I-AREA).
        unsafe { simd::copy(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    fn zero(&self, at: u64, bytes: u64) -> Result<(), Outside> {
        let to = self.place(at, bytes)?;
        // SAFETY: the bytes are inside the area (I-AREA).
        unsafe { zero(to, bytes as usize) };
        Ok(())
    }

    fn copy(&self, at: u64, to: &Self, to_at: u64, bytes: u64) -> Result<(), Outside> {
        let from = self.place(at, bytes)?;
        let to = to.place(to_at, bytes)?;
        // SAFETY: the bytes are inside both areas (I-AREA).
        unsafe { simd::copy(from, to, bytes as usize) };
        Ok(())
    }
}

/// Sets bytes to zero, 16 at a time, then one.
///
/// # Safety
///
/// The bytes can be written, and are none that Rust refers to.
unsafe fn zero(to: *mut u8, bytes: usize) {
    // SAFETY: the caller's bytes, and no others. Normal memory takes unaligned accesses.
    unsafe {
        asm!(
            "subs {n}, {n}, #16",
            "b.lo 3f",
            "2: stp xzr, xzr, [{to}], #16",
            "subs {n}, {n}, #16",
            "b.hs 2b",
            "3: adds {n}, {n}, #16",
            "b.eq 5f",
            "4: strb wzr, [{to}], #1",
            "subs {n}, {n}, #1",
            "b.ne 4b",
            "5:",
            n = inout(reg) bytes => _,
            to = inout(reg) to => _,
            options(nostack)
        );
    }
}
