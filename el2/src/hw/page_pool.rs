//! The order of the page pool, the memory after the image that the plan reserves for EL2: pCPUs,
//! then vCPUs and service threads, VMs, stage-2 tables, virtio devices, what service threads reach.

use core::sync::atomic::{AtomicU64, Ordering};

use super::layout;
use super::plan::plan;

/// The address at which the image was loaded.
static LOADED_AT: AtomicU64 = AtomicU64::new(0);

/// Sets the address at which the image was loaded, during start-up.
pub fn set_loaded_at(load: u64) {
    LOADED_AT.store(load, Ordering::Relaxed);
}

/// Returns the address at which the image was loaded.
pub fn loaded_at() -> u64 {
    LOADED_AT.load(Ordering::Relaxed)
}

/// Returns the first page of the page pool for vCPU `id` (row of the plan; those of service threads follow).
pub fn vcpu_page_number(id: usize) -> usize {
    plan()
        .pcpus
        .len()
        .wrapping_mul(layout::PCPU_PAGES)
        .wrapping_add(id.wrapping_mul(layout::vcpu::PAGES))
}

/// Returns the first page of the page pool for VM `index`.
pub fn vm_page_number(index: usize) -> usize {
    let services = if cfg!(any(feature = "io", feature = "managed")) {
        plan().service_threads().len()
    } else {
        0
    };
    vcpu_page_number(plan().vcpus.len().wrapping_add(services))
        .wrapping_add(index.wrapping_mul(bulkhead_abi::plan::VM_PAGES as usize))
}

/// Returns the first page of the page pool for a virtio device (row of the plan).
pub fn virtio_page_number(device: usize) -> usize {
    page_at(plan().tables_end())
        .wrapping_add(device.wrapping_mul(bulkhead_abi::plan::VIRTIO_PAGES as usize))
}

/// Returns the first page of the page pool for what a service thread reaches.
pub fn service_page_number(service: usize) -> usize {
    let plan = plan();
    let threads = plan.service_threads().iter().take(service);
    let before = threads.fold(0u32, |sum, row| sum.wrapping_add(row.pages));
    virtio_page_number(plan.virtio_devices().len()).wrapping_add(before as usize)
}

/// Returns the physical address of the page pool.
pub fn base() -> u64 {
    loaded_at().wrapping_add(plan().header.image.page_pool_offset)
}

/// Returns the page of the page pool that lies at this offset in the image.
pub fn page_at(offset: u64) -> usize {
    (offset.wrapping_sub(plan().header.image.page_pool_offset) / bulkhead_abi::plan::PAGE) as usize
}

/// Returns the physical address of the root of a VM's stage 2.
pub fn stage2_root(index: usize) -> u64 {
    let root = plan().vms.get(index).map_or(0, |row| row.s2_root);
    loaded_at().wrapping_add(root)
}
