//! QEMU plugin that models caches and TLBs: private L1s, a shared L2 by physical address, and the walks that QEMU's callbacks do not show. It tells who
//! misses, and whose lines are evicted by others.
//!
//! It is loaded by `qemu-system-aarch64 -plugin FILE,config=CONFIG.json`; [`bulkhead_plugin::caches`] has the configuration and the result.
//!
//! An emulator has no caches. What is counted here is what caches of this shape would do with the accesses that guests and EL2 make, in their order; the
//! cycles are the model's, and no hardware's. What it leaves out: prefetching, store buffers, contiguous hints, devices, accesses of SIMD loads that QEMU
//! shows as several, and code that a block has but an exception does not let execute.

mod caches;
mod decode;
mod memory;
mod model;
mod plugin;
mod sets;
mod walk;
