//! Interface to the counters of the compiler's instrumentation: the only unsafe code here.
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

/// Makes all counters zero.
pub fn clear_counters() {
    let Ok(ranges) = RANGES.lock() else {
        return;
    };
    for range in ranges.iter() {
        // SAFETY: the range is what the instrumentation named. The instrumented code counts with plain stores on this
        // thread, which is busy here; the thread that watches for hangs may lose a count, which nobody reads.
        unsafe { range.start.write_bytes(0, range.bytes) };
    }
}

/// Copies all counters to `copy`, one range behind the other, and makes them zero.
pub fn take_counters(copy: &mut Vec<u8>) {
    copy.clear();
    let Ok(ranges) = RANGES.lock() else {
        return;
    };
    for range in ranges.iter() {
        let start = copy.len();
        copy.resize(start + range.bytes, 0);
        // SAFETY: as above; `copy` has as many bytes from `start` on, and is no counter.
        unsafe {
            range
                .start
                .copy_to_nonoverlapping(copy[start..].as_mut_ptr(), range.bytes)
        };
        // SAFETY: as above.
        unsafe { range.start.write_bytes(0, range.bytes) };
    }
}

/// Returns the number of counters; 0 if the program was built without them.
pub fn counters() -> usize {
    RANGES
        .lock()
        .map_or(0, |ranges| ranges.iter().map(|range| range.bytes).sum())
}
