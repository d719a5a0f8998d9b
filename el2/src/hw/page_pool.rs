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

/// Returns the page of the page pool at which the stage-2 tables of a VM start.
pub fn stage2_page(index: usize) -> usize {
    let plan = plan();
    let before: u32 = plan
        .vms
        .iter()
        .take(index)
        .fold(0, |sum, vm| sum.wrapping_add(vm.s2_pages));
    vm_page_number(plan.vms.len()).wrapping_add(before as usize)
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
    stage2_page(plan().vms.len())
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

/// Returns the physical address of the root of a VM's stage 2.
pub fn stage2_root(index: usize) -> u64 {
    base().wrapping_add((stage2_page(index) as u64).wrapping_mul(bulkhead_abi::plan::PAGE))
}
