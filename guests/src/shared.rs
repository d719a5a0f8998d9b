//! Memory that another VM maps too.

use crate::board::Range;
use core::sync::atomic::AtomicU64;

/// Words of a shared region.
pub type Words = &'static [AtomicU64];

/// The words of a shared region. Both sides may write at any time: hence atomics, and no references
/// to anything else in there.
pub fn words(region: Range) -> Words {
    let start = core::ptr::with_exposed_provenance(region.base);
    // SAFETY: the region is named by the device tree, is mapped for as long as the guest runs, is
    // aligned to a page, and is used through atomics only (I-SHARED).
    unsafe { core::slice::from_raw_parts(start, region.size / size_of::<AtomicU64>()) }
}
