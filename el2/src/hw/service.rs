//! Memory that the map of a service thread's pCPU shows besides EL2's own: the state of the service thread, and memory of VMs.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bulkhead_abi::device::backend_page;
use bulkhead_abi::plan::{MAX_SERVICE_THREADS, PAGE};
use bulkhead_core::virtio::memory::{At, Memory};
use bulkhead_core::virtio::pages;
use bulkhead_core::virtio::told::{self, Told};

core::arch::global_asm!(include_str!("copy.s"), options(raw));

unsafe extern "C" {
    /// Copies bytes; the places do not overlap.
    fn copy_mapped(to: u64, from: u64, bytes: u64);
}

/// Memory of VMs as the pCPU of a service thread has it mapped.
#[derive(Clone, Copy, Debug)]
pub struct Mapped;

/// Implements a load and a store of one size.
macro_rules! accesses {
    ($load:ident $store:ident $type:ty, $read:literal, $write:literal) => {
        #[inline(always)]
        fn $load(&self, at: At) -> $type {
            let value: u64;
            // SAFETY: [R-SERVICE] the place is in memory of a VM that this pCPU has mapped.
            unsafe {
                core::arch::asm!($read, out(reg) value, in(reg) at.address(), options(nostack, preserves_flags));
            }
            value as $type
        }

        #[inline(always)]
        fn $store(&self, at: At, value: $type) {
            // SAFETY: [R-SERVICE] the place is in memory of a VM that this pCPU has mapped, which Rust knows nothing of.
            unsafe {
                core::arch::asm!($write, in(reg) u64::from(value), in(reg) at.address(), options(nostack, preserves_flags));
            }
        }
    };
}

impl Memory for Mapped {
    accesses!(load8 store8 u8, "ldrb {0:w}, [{1}]", "strb {0:w}, [{1}]");
    accesses!(load16 store16 u16, "ldrh {0:w}, [{1}]", "strh {0:w}, [{1}]");
    accesses!(load32 store32 u32, "ldr {0:w}, [{1}]", "str {0:w}, [{1}]");
    accesses!(load64 store64 u64, "ldr {0}, [{1}]", "str {0}, [{1}]");

    #[inline(always)]
    fn copy(&self, from: At, to: At, bytes: u64) {
        // SAFETY: [R-SERVICE] both ranges are in memory of VMs that this pCPU has mapped, and a budget bounds them. Unaligned accesses
        // to Normal memory are allowed (SCTLR_EL2.A is 0).
        unsafe { copy_mapped(to.address(), from.address(), bytes) }
    }

    #[inline(always)]
    fn read(&self, from: At, to: &mut [u8]) {
        let (place, bytes) = (to.as_mut_ptr() as u64, to.len() as u64);
        // SAFETY: [R-SERVICE] as `copy`, into a slice.
        unsafe { copy_mapped(place, from.address(), bytes) }
    }

    #[inline(always)]
    fn write(&self, to: At, from: &[u8]) {
        let (place, bytes) = (from.as_ptr() as u64, from.len() as u64);
        // SAFETY: [R-SERVICE] as `copy`, out of a slice.
        unsafe { copy_mapped(to.address(), place, bytes) }
    }
}

/// Tells the backend of devices, one bit for each, by the page that its VM has for that.
#[inline(always)]
pub fn tell(page: At, devices: u64) -> Told {
    let place = |offset: usize| page.plus(offset as u64).address();
    let news = place(backend_page::NEWS) as *mut u64;
    // SAFETY: [R-SERVICE] an aligned word of memory of a VM that this pCPU has mapped.
    let news = unsafe { AtomicU64::from_ptr(news) };
    let armed = place(backend_page::ARMED) as *mut u32;
    // SAFETY: [R-SERVICE] an aligned word of memory of a VM that this pCPU has mapped.
    let armed = unsafe { AtomicU32::from_ptr(armed) };
    told::tell(news, armed, devices)
}

/// Pages of the state of each service thread.
static STATE_PAGES: [AtomicU32; MAX_SERVICE_THREADS] =
    [const { AtomicU32::new(0) }; MAX_SERVICE_THREADS];

/// Sets how many pages the state of a service thread has, during start-up, which maps them.
pub fn set_state_pages(service: usize, pages: u64) {
    STATE_PAGES[service % MAX_SERVICE_THREADS].store(pages as u32, Ordering::Relaxed);
}

/// Memory of a service thread's own, which it hands out once, from its start on.
#[derive(Debug)]
pub struct Arena {
    next: u64,
    end: u64,
}

impl Arena {
    /// The state of the service thread of this pCPU. Its thread calls this once, when it starts.
    pub fn new(service: usize) -> Self {
        let state = STATE_PAGES[service % MAX_SERVICE_THREADS].load(Ordering::Relaxed);
        Self {
            next: pages::START,
            end: pages::START.wrapping_add(u64::from(state).wrapping_mul(PAGE)),
        }
    }

    /// Takes whole pages; `None` if there are no more. Returns their address.
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let at = self.next;
        let pages = bytes.div_ceil(PAGE);
        let end = at.wrapping_add(pages.wrapping_mul(PAGE));
        if end > self.end {
            return None;
        }
        self.next = end;
        Some(at)
    }

    /// Makes a value in so many pages.
    #[inline(always)]
    pub fn make<T>(&mut self, pages: u64, value: impl FnOnce() -> T) -> Option<&'static mut T> {
        let bytes = pages.wrapping_mul(PAGE);
        if size_of::<T>() as u64 > bytes {
            return None;
        }
        let place = self.take(bytes)? as *mut T;
        // SAFETY: [R-SERVICE] mapped pages of this pCPU alone, which were handed out to nobody else.
        unsafe { place.write(value()) }
        // SAFETY: [R-SERVICE] the one reference to what was just written.
        Some(unsafe { &mut *place })
    }

    /// Makes two arrays of the same number of values, one behind the other.
    pub fn make_arrays<T: Copy, U: Copy>(
        &mut self,
        count: usize,
        first: T,
        second: U,
    ) -> Option<(&'static mut [T], &'static mut [U])> {
        let bytes = (size_of::<T>() as u64).wrapping_mul(count as u64);
        let more = (size_of::<U>() as u64).wrapping_mul(count as u64);
        let at = self.take(bytes.wrapping_add(more))?;
        // The first type is a multiple of the second one's alignment.
        const { assert!(size_of::<T>().is_multiple_of(align_of::<U>())) };
        let (one, other) = (at as *mut T, at.wrapping_add(bytes) as *mut U);
        for n in 0..count {
            // SAFETY: [R-SERVICE] in the pages that were just taken.
            unsafe { one.wrapping_add(n).write(first) }
            // SAFETY: [R-SERVICE] in the pages that were just taken, behind the first array.
            unsafe { other.wrapping_add(n).write(second) }
        }
        // SAFETY: [R-SERVICE] the one reference to what was just written.
        let one = unsafe { core::slice::from_raw_parts_mut(one, count) };
        // SAFETY: [R-SERVICE] the one reference to what was just written.
        let other = unsafe { core::slice::from_raw_parts_mut(other, count) };
        Some((one, other))
    }
}
