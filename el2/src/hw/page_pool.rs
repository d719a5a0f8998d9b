//! The memory after the image that the plan reserves for EL2. Pages of pCPUs, vCPUs, service threads and VMs have numbers in this order
//! ([`PagePool::threads`](bulkhead_core::plan::PagePool)).

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

/// Returns the physical address at which a byte of the EL2 binary was loaded. EL2 may have moved since.
pub fn loaded(address: u64) -> u64 {
    loaded_at().wrapping_add(address.wrapping_sub(layout::BASE))
}

/// Returns the number of the first page of vCPU `id` (row of the plan; service threads follow).
pub fn vcpu_page_number(id: usize) -> usize {
    plan()
        .pcpus
        .len()
        .wrapping_mul(layout::PCPU_PAGES)
        .wrapping_add(id.wrapping_mul(layout::vcpu::PAGES))
}

/// Returns the number of the first page of VM `index`.
pub fn vm_page_number(index: usize) -> usize {
    let services = if cfg!(any(feature = "io", feature = "managed")) {
        plan().service_threads().len()
    } else {
        0
    };
    vcpu_page_number(plan().vcpus.len().wrapping_add(services))
        .wrapping_add(index.wrapping_mul(bulkhead_abi::plan::VM_PAGES as usize))
}

/// Returns the physical address of the root of a VM's stage 2.
pub fn stage2_root(index: usize) -> u64 {
    let root = plan().vms.get(index).map_or(0, |row| row.s2_root);
    loaded_at().wrapping_add(root)
}
