//! EL2's address space: 39 bits, one root page for each pCPU.
//!
//! Everything lies in the 1 GiB from [`BASE`] on, which is one level-2 table; a block is what one
//! entry of that table maps, 2 MiB.
//!
//! | block | contents | mapped by |
//! | --- | --- | --- |
//! | 0 | image: text, rodata, data, plan | all |
//! | 1 | the pages of the VMs ([`super::state::Vm`]); the frames of a GICv2, the distributor of a GICv3 where pCPUs call each other by SPIs, roots of stage 2 that can be taken away; the pages of virtio devices | all |
//! | 2 | stack, state and keys of each vCPU and service thread that may run on pCPU i; the table is that of block 8 + i | pCPU i |
//! | 8 + i | stack and state of the idle thread, state, GICv3 and UART of pCPU i | pCPU i |
//! | 32, 33 | copy windows on guest memory and payloads | the pCPU that copies, while it copies |
//! | 40, 41 | boot device tree | the boot map only |
//! | 42 to 74 | page pool | the boot map only |
//! | 75, 76 | copy windows on device frames | the boot map only |
//!
//! Behind this 1 GiB lies what a service thread reaches, on its pCPU, and of that the memory of managers also where their vCPUs may run
//! ([`bulkhead_core::virtio::pages`]).

use bulkhead_abi::plan::{
    MAX_PAGE_POOL, MAX_PCPUS, MAX_VCPUS, MAX_VIRTIO_DEVICES, MAX_VMS, PAGE, VIRTIO_PAGES, VM_PAGES,
};

/// The start of EL2's 1 GiB, which is the link address.
pub const BASE: u64 = 0x20_0000_0000;
/// The size of a block in bytes.
pub const BLOCK_SIZE: u64 = 2 << 20;

/// The block of the VM pages.
pub const VMS: usize = 1;
/// The block of the vCPUs' pages.
pub const VCPUS: usize = 2;
/// The block of the first pCPU's private pages.
pub const PRIVATE: usize = 8;
/// The block through which data is read.
pub const SOURCE: usize = 32;
/// The block through which guest memory is written.
pub const TARGET: usize = 33;
/// The first of two blocks on the boot device tree.
pub const TREE: usize = 40;
/// The first block of the page pool in the boot map.
pub const PAGE_POOL: usize = 42;
/// The number of blocks of the page pool, which may start in the middle of one.
pub const PAGE_POOL_BLOCKS: usize = (MAX_PAGE_POOL * PAGE).div_ceil(BLOCK_SIZE) as usize + 1;
/// The first of two blocks of device frames in the boot map.
pub const FRAMES: usize = 75;

const _: () = assert!(PAGE_POOL + PAGE_POOL_BLOCKS <= FRAMES);

const _: () = assert!(PRIVATE + MAX_PCPUS <= SOURCE);

/// Page numbers in the block of the VM pages, after those pages: frames that all pCPUs map at one
/// address.
pub mod shared {
    /// The distributor: of a GICv2, and of a GICv3 where pCPUs call each other by SPIs.
    pub const GICD: usize = 256;
    /// The pages of the distributor.
    #[cfg(feature = "gicv2")]
    pub const GICD_PAGES: usize = 1;
    /// The pages of the distributor.
    #[cfg(not(feature = "gicv2"))]
    pub const GICD_PAGES: usize = super::private::GICD_PAGES;
    /// The CPU interface.
    #[cfg(feature = "gicv2")]
    pub const GICC: usize = 272;
    /// The pages of the CPU interface.
    #[cfg(feature = "gicv2")]
    pub const GICC_PAGES: usize = 2;
    /// The virtual interface control.
    #[cfg(feature = "gicv2")]
    pub const GICH: usize = 288;
    /// The pages of the virtual interface control.
    #[cfg(feature = "gicv2")]
    pub const GICH_PAGES: usize = 1;
    /// The roots of the stage 2 of GPPT VMs, one page for each VM.
    pub const ROOTS: usize = 304;
    /// The pages of the virtio devices, [`VIRTIO_PAGES`](bulkhead_abi::plan::VIRTIO_PAGES) for each.
    pub const VIRTIO: usize = 368;
}

const _: () = assert!(MAX_VMS * VM_PAGES as usize <= shared::GICD);
const _: () = assert!(shared::GICD + shared::GICD_PAGES <= shared::ROOTS);
const _: () = assert!(shared::ROOTS + MAX_VMS <= shared::VIRTIO);
const _: () = assert!(shared::VIRTIO + MAX_VIRTIO_DEVICES * VIRTIO_PAGES as usize <= 512);
const _: () = assert!(bulkhead_core::virtio::pages::START == BASE + (1 << 30));

/// Page numbers in the part of the block of the vCPUs' pages that belongs to one vCPU. Page 0 stays
/// unmapped: a stack that overflows faults. The parts lie behind the private pages of the pCPU,
/// because one table maps both: so each pCPU has a table for its vCPUs without a page more.
pub mod vcpu {
    /// The first page of the first vCPU's part.
    pub const FIRST: usize = super::private::END;
    /// The pages from one vCPU's part to the next.
    pub const STRIDE: usize = 6;
    /// The first page of the stack.
    pub const STACK: usize = 1;
    /// The pages of the stack.
    pub const STACK_PAGES: usize = super::private::STACK_PAGES;
    /// The first page of the state, just above the stack.
    pub const STATE: usize = STACK + STACK_PAGES;
    /// The pages of the state.
    pub const STATE_PAGES: usize = super::private::STATE_PAGES;
    /// The pages of the page pool for a vCPU: stack, state.
    pub const PAGES: usize = STACK_PAGES + STATE_PAGES;
}
const _: () = assert!(vcpu::PAGES == bulkhead_abi::plan::VCPU_PAGES as usize);
const _: () = assert!(vcpu::STATE + vcpu::STATE_PAGES <= vcpu::STRIDE);
const _: () = assert!(vcpu::FIRST + MAX_VCPUS * vcpu::STRIDE < 512);

/// Page numbers in the private block of a pCPU. Page 0 and the page after the state stay unmapped:
/// a stack that overflows faults.
pub mod private {
    /// The first page of the idle thread's stack.
    pub const STACK: usize = 1;
    /// The pages of the stack.
    pub const STACK_PAGES: usize = 2;
    /// The first page of the idle thread's state, just above the stack.
    pub const STATE: usize = STACK + STACK_PAGES;
    /// The pages of the idle thread's state.
    pub const STATE_PAGES: usize = 3;
    /// The first page of the state that the threads of the pCPU share.
    pub const PCPU: usize = 7;
    /// The pages of that shared state.
    pub const PCPU_STATE_PAGES: usize = 2;
    /// The pCPU's own level-2 table, in which it opens copy windows.
    pub const LEVEL2: usize = 9;
    /// The first page of the distributor of a GICv3.
    #[cfg(not(feature = "gicv2"))]
    pub const GICD: usize = 16;
    /// The pages of the distributor.
    #[cfg(not(feature = "gicv2"))]
    pub const GICD_PAGES: usize = 16;
    /// The first page of this pCPU's redistributor.
    #[cfg(not(feature = "gicv2"))]
    pub const GICR: usize = 32;
    /// The pages of the redistributor.
    #[cfg(not(feature = "gicv2"))]
    pub const GICR_PAGES: usize = 32;
    /// The page of the UART.
    pub const UART: usize = 64;
    /// The first page behind all of these.
    pub const END: usize = UART + 1;
}

/// The pages of the page pool for a pCPU: root, level 2, level 3, stack, state, state that its
/// threads share.
pub const PCPU_PAGES: usize =
    3 + private::STACK_PAGES + private::STATE_PAGES + private::PCPU_STATE_PAGES;
const _: () = assert!(PCPU_PAGES == bulkhead_abi::plan::PCPU_PAGES as usize);

/// Returns the address of a block.
pub const fn block(n: usize) -> u64 {
    BASE.wrapping_add((n as u64).wrapping_mul(BLOCK_SIZE))
}

/// Returns the address of a page in the private block of pCPU `index`.
pub const fn private(index: usize, page: usize) -> u64 {
    block(PRIVATE.wrapping_add(index)).wrapping_add((page as u64).wrapping_mul(PAGE))
}

/// Returns the element of the pCPU in whose private block the address `state` is. The guarded vectors do the same.
pub fn of_pcpu<T>(table: &[T; MAX_PCPUS], state: u64) -> &T {
    const _: () = assert!(MAX_PCPUS == 8 && PRIVATE.is_multiple_of(8) && BLOCK_SIZE == 1 << 21);
    &table[(state / BLOCK_SIZE) as usize & 7]
}

/// Returns the number of a page in the part of vCPU `id` (row of the plan).
pub const fn vcpu_page(id: usize, page: usize) -> usize {
    id.wrapping_mul(vcpu::STRIDE)
        .wrapping_add(vcpu::FIRST)
        .wrapping_add(page)
}

/// Returns the address of a page in the part of vCPU `id` (row of the plan).
pub const fn vcpu(id: usize, page: usize) -> u64 {
    let page = vcpu_page(id, page) as u64;
    block(VCPUS).wrapping_add(page.wrapping_mul(PAGE))
}
