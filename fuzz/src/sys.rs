//! Where the compiler's instrumentation hands over its counters: the only unsafe code here.
#![allow(unsafe_code)]

use std::sync::Mutex;

/// A range of counters, one byte for each edge of control flow.
#[derive(Clone, Copy)]
struct Range {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the counters are static memory of the program; `Range` is only a place and a length.
unsafe impl Send for Range {}

static RANGES: Mutex<Vec<Range>> = Mutex::new(Vec::new());

/// Called by the constructor of each instrumented object, before `main` (LLVM, "SanitizerCoverage",
/// inline 8-bit counters).
// SAFETY: nothing else defines the symbol; it is LLVM's hook for this purpose.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8) {
    let bytes = (stop as usize).saturating_sub(start as usize);
    let Ok(mut ranges) = RANGES.lock() else {
        return;
    };
    if ranges.iter().all(|range| range.start != start) {
        ranges.push(Range { start, bytes });
    }
}

/// Gives each counter that is not zero, with its number, and makes it zero.
pub fn take_counters(mut each: impl FnMut(usize, u8)) {
    let Ok(ranges) = RANGES.lock() else {
        return;
    };
    let mut number = 0;
    for range in ranges.iter() {
        for offset in 0..range.bytes {
            let place = range.start.wrapping_add(offset);
            // SAFETY: inside the range that the instrumentation named. The instrumented code counts with
            // plain stores on this thread, which is busy here.
            let count = unsafe { place.read_volatile() };
            if count != 0 {
                // SAFETY: as above.
                unsafe { place.write_volatile(0) };
                each(number, count);
            }
            number += 1;
        }
    }
}

/// How many counters there are; none if the program was built without.
pub fn counters() -> usize {
    RANGES
        .lock()
        .map_or(0, |ranges| ranges.iter().map(|range| range.bytes).sum())
}
