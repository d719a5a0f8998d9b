//! EL2's own translation: the private maps of the pCPUs, and copy windows on memory that EL2 does
//! not map permanently (DDI 0487, D8.3).

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use bulkhead_abi::plan::{
    ALL_COLOURS, MAX_PCPUS, PAGE, Region, VIRTIO_PAGES, VIRTIO_REGISTERS_PAGE, VM_PAGES,
};
use bulkhead_core::cpu::keys::Key;
use bulkhead_core::plan::page_of;

use super::bytes;
use super::layout::{self, BLOCK_SIZE, PCPU_PAGES, private, vcpu};
use super::mmio::Registers;
use super::plan::plan;
use super::{page_pool, state, sysreg};

type Table = [u64; 512];

/// Valid table or page, accessed, inner shareable, bit 6 as EL2 requires, Normal memory.
const PAGE_RW: u64 = 0x743 | XN;
const PAGE_RO: u64 = 0x7c3 | XN;
const BLOCK: u64 = 0x741 | XN;
const READ_ONLY: u64 = 1 << 7;
const DEVICE_INDEX: u64 = 1 << 2;
const NON_CACHEABLE_INDEX: u64 = 2 << 2;
const XN: u64 = 1 << 54;
const TABLE: u64 = 3;

/// The address in a descriptor.
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;
/// The entry of a root for EL2's 1 GiB.
const EL2_GIGABYTE: usize = (layout::BASE >> 30) as usize;

unsafe extern "C" {
    fn enter_copy(root: u64, loaded_at: u64);
    static mut BOOT_LEVEL1: Table;
    static mut BOOT_LEVEL2: Table;
    static mut IMAGE_LEVEL3: Table;
    static mut VMS_LEVEL3: Table;
    static mut ROOTS: [u64; MAX_PCPUS];
    #[cfg(feature = "spin-table")]
    static mut MPIDRS: [u64; MAX_PCPUS];
}

/// Writes an entry of a translation table.
///
/// # Safety
/// `table` is a translation table of this pCPU's map, mapped for writing, that no other pCPU
/// changes.
unsafe fn put(table: *mut u64, index: usize, descriptor: u64) {
    let entry = table.wrapping_add(index % 512);
    // SAFETY: [R-TABLES] a table has 512 entries; the rest is the caller's promise.
    unsafe { entry.write_volatile(descriptor) }
}

/// The kind of access that a copy window allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Normal memory, read only.
    Read,
    /// Normal memory, read and write.
    Write,
    /// Device registers.
    Device,
}

/// The level-2 table that this pCPU uses, in which it opens copy windows: entries that show other
/// memory for a moment.
#[derive(Debug)]
pub struct CopyWindows {
    level2: *mut u64,
}

impl CopyWindows {
    /// Returns the copy windows of the boot map. Only the boot pCPU calls this, and only before it
    /// leaves that map.
    pub fn boot() -> Self {
        Self {
            level2: (&raw mut BOOT_LEVEL2).cast(),
        }
    }

    /// Returns the copy windows of pCPU `index`, which calls this.
    pub fn of(index: usize) -> Self {
        Self {
            level2: layout::private(index, private::LEVEL2) as *mut u64,
        }
    }

    /// Opens a copy window at `block` on the 2 MiB that hold `pa`, and returns the virtual address
    /// of `pa`.
    #[inline(never)]
    pub fn open(&mut self, block: usize, pa: u64, how: Use) -> u64 {
        let attributes = match how {
            Use::Read => BLOCK | READ_ONLY,
            Use::Write => BLOCK,
            Use::Device => BLOCK | DEVICE_INDEX,
        };
        self.set(block, 0);
        let address = layout::block(block);
        // SAFETY: [R-TLB] invalidates the translation of this block on this pCPU, which nothing
        // uses now.
        unsafe {
            core::arch::asm!("dsb ishst", "tlbi vae2, {}", "dsb nsh", "isb", in(reg) address >> 12);
        }
        self.set(block, pa & !BLOCK_SIZE.wrapping_sub(1) | attributes);
        sysreg::dsb();
        sysreg::isb();
        address.wrapping_add(pa % BLOCK_SIZE)
    }

    /// Closes the copy window at `block`.
    #[inline(never)]
    pub fn close(&mut self, block: usize) {
        self.set(block, 0);
        // SAFETY: [R-TLB] invalidates the translation of this block on this pCPU, which nothing
        // uses now.
        unsafe {
            core::arch::asm!("dsb ishst", "tlbi vae2, {}", "dsb nsh", "isb", in(reg) layout::block(block) >> 12);
        }
    }

    fn set(&mut self, block: usize, descriptor: u64) {
        // SAFETY: [R-TABLES] `level2` is a table that only this pCPU changes.
        unsafe { put(self.level2, block, descriptor) }
    }

    /// Opens a copy window on a frame of device registers.
    pub fn registers(&mut self, block: usize, pa: u64, size: u64) -> Registers {
        let address = self.open(block, pa, Use::Device);
        let size = size.min(BLOCK_SIZE.wrapping_sub(pa % BLOCK_SIZE));
        // SAFETY: [R-MMIO] just mapped; a caller that opens the block again creates a new value.
        unsafe { Registers::new(address, size) }
    }
}

/// Takes the pages of a part of the image, from `start` to `end`, out of the table that all pCPUs have of it.
#[inline(never)]
pub fn unmap(start: u64, end: u64) {
    let table: *mut u64 = (&raw mut IMAGE_LEVEL3).cast();
    let first = (start % BLOCK_SIZE / PAGE) as usize;
    let pages = (end.wrapping_sub(start) / PAGE) as usize;
    // SAFETY: [R-TABLES] no other pCPU changes the table now, and none uses this part any more.
    unsafe { table.wrapping_add(first).write_bytes(0, pages) }
    // SAFETY: [R-TLB] what the TLBs of all pCPUs have of the table goes.
    unsafe { core::arch::asm!("dsb ishst", "tlbi alle2is", "dsb ish", "isb") }
}

/// The pages that EL2 uses besides the image (a vCPU's `pool` is of pCPUs), mapped by the boot map while start-up assigns its pages.
#[derive(Clone, Copy, Debug)]
pub struct PagePool {
    address: u64,
    pa: u64,
    pages: usize,
    /// Where its parts lie, from the start of the image on.
    pub parts: bulkhead_core::plan::PagePool,
}

impl PagePool {
    /// Maps the page pool and zeroes it. The zeros are in the caches, where all but [`Self::show`] is used.
    pub fn open(copy_windows: &mut CopyWindows, parts: bulkhead_core::plan::PagePool) -> Self {
        let offset = plan().header.image.page_pool_offset;
        let pa = page_pool::loaded_at().wrapping_add(offset);
        let size = parts.end.wrapping_sub(offset);
        let (mut block, mut from) = (layout::PAGE_POOL, pa & !BLOCK_SIZE.wrapping_sub(1));
        // The proof of the plan says that there are enough blocks.
        while from < pa.wrapping_add(size) {
            copy_windows.open(block, from, Use::Write);
            block = block.wrapping_add(1);
            from = from.wrapping_add(BLOCK_SIZE);
        }
        let address = layout::block(layout::PAGE_POOL).wrapping_add(pa % BLOCK_SIZE);
        // SAFETY: [R-PAGE-POOL] the pages are the page pool's, just mapped for writing.
        unsafe { bytes::zero_lines::<false>(address, size) }
        Self {
            address,
            pa,
            pages: (size / PAGE) as usize,
            parts,
        }
    }

    /// Returns the physical address of a page of a part.
    pub fn page_of(&self, part: &Region, number: usize) -> u64 {
        page_pool::loaded_at().wrapping_add(page_of(part, number as u64))
    }

    /// Returns the physical address of a page by its number ([`page_pool`]).
    pub fn pa(&self, page: usize) -> u64 {
        self.page_of(&self.parts.threads, page)
    }

    /// Cleans and invalidates a page, which has zeros, for those who read it past the caches: guests.
    pub fn show(&self, pa: u64) {
        // SAFETY: [R-PAGE-POOL] the page is mapped.
        unsafe { bytes::clean(self.va(pa), PAGE) }
    }

    /// Returns the virtual address of a page in the boot map.
    const fn va(&self, pa: u64) -> u64 {
        self.address.wrapping_add(pa.wrapping_sub(self.pa))
    }

    /// Returns the keys of vCPU `id` (row of the plan; [`state::keys`]).
    pub fn keys(&self, id: usize) -> &[Key; 2] {
        let last = page_pool::vcpu_page_number(id).wrapping_add(vcpu::PAGES - 1);
        let end = self.va(self.pa(last)).wrapping_add(PAGE);
        // SAFETY: [R-KEYS] the pages of the page pool are mapped and zeroed, and these are the
        // vCPU's.
        unsafe { state::keys_before(end) }
    }

    /// Returns all pages from a physical address on as translation tables.
    pub fn tables(&mut self, pa: u64) -> &mut [Table] {
        let first = (pa.wrapping_sub(self.pa) / PAGE) as usize;
        let address = self.va(pa) as *mut Table;
        // SAFETY: [R-PAGE-POOL] the pages are mapped, zeroed, and lent by the one `&mut PagePool`;
        // any bytes are a valid table.
        unsafe { core::slice::from_raw_parts_mut(address, self.pages.saturating_sub(first)) }
    }

    /// Returns a page as a translation table.
    fn table(&self, pa: u64) -> *mut u64 {
        self.va(pa) as *mut u64
    }
}

/// Moves the EL2 binary and the plan into EL2's colours, if it has not all: copies them, and goes on in the copy, which has the same addresses.
pub fn move_image(copy_windows: &mut CopyWindows, page_pool: &PagePool) {
    let image = &page_pool.parts.image;
    let pages = (image.size / PAGE) as usize;
    if pages == 0 {
        return;
    }
    let copy_of = |address: u64| {
        let page = address.wrapping_sub(layout::BASE) / PAGE;
        page_pool.page_of(image, page as usize)
    };
    let address_of = |page: usize| layout::BASE.wrapping_add((page as u64).wrapping_mul(PAGE));
    for page in 0..pages {
        let from = address_of(page);
        let copy = page_pool.va(copy_of(from));
        // SAFETY: [R-PAGE-POOL] the boot map has the image and the page pool, in which nobody has this page yet.
        unsafe { bytes::copy_words(from, copy, PAGE) };
        // Instructions are fetched from there.
        // SAFETY: [R-PAGE-POOL] as before.
        unsafe { bytes::clean(copy, PAGE) };
    }
    let level1 = (&raw const BOOT_LEVEL1) as u64;
    let level3 = (&raw const IMAGE_LEVEL3).cast::<u64>();
    let [new_level1, new_level2, new_level3] =
        [level1, (&raw const BOOT_LEVEL2) as u64, level3 as u64].map(copy_of);
    for page in 0..pages {
        // SAFETY: [R-TABLES] the boot code has made the table, which has 512 entries.
        let before = unsafe { level3.wrapping_add(page % 512).read_volatile() };
        let entry = before & !ADDRESS | copy_of(address_of(page));
        // SAFETY: [R-TABLES] nothing uses the copy yet.
        unsafe { put(page_pool.table(new_level3), page, entry) }
    }
    for (table, entry, next) in [
        (new_level2, 0, new_level3),
        (new_level1, EL2_GIGABYTE, new_level2),
    ] {
        // SAFETY: [R-TABLES] nothing uses the copies yet.
        unsafe { put(page_pool.table(table), entry, next | TABLE) }
    }
    sysreg::dsb();
    // SAFETY: [R-MOVE] the copy is whole but for the stack, which is copied there; the new map differs from this one in nothing else.
    unsafe { enter_copy(new_level1, page_pool::loaded_at()) }
    // Other CPUs start where the image was loaded, with the boot map that it had.
    let boot = copy_windows.open(layout::TARGET, page_pool::loaded(level1), Use::Write);
    // SAFETY: [R-TABLES] no CPU uses the first boot map now.
    unsafe { put(boot as *mut u64, EL2_GIGABYTE, new_level2 | TABLE) }
    copy_windows.close(layout::TARGET);
}

/// A frame of device registers in the private map of a pCPU.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// The first page of the frame in the private block.
    pub page: usize,
    /// The physical address of the frame.
    pub pa: u64,
    /// The size of the frame in pages.
    pub pages: usize,
}

/// Maps the pages of a VM for all pCPUs.
pub fn share_vm_pages(page_pool: &PagePool, vm: usize) {
    let from = page_pool::vm_page_number(vm);
    let first = vm.wrapping_mul(VM_PAGES as usize);
    map_part(
        page_pool,
        (&page_pool.parts.threads, from),
        vms(),
        first,
        VM_PAGES as usize,
    );
}

/// Maps the pages of a virtio device for all pCPUs: its state, and its registers, which are not cacheable, because the guest reads them so.
pub fn share_virtio_pages(page_pool: &PagePool, device: usize) {
    let first = virtio_page(device);
    map_part(
        page_pool,
        (&page_pool.parts.virtio, device),
        vms(),
        first,
        1,
    );
    let pa = page_pool.page_of(&page_pool.parts.registers, device);
    if device == 0 {
        VIRTIO_REGISTERS.store(pa, Ordering::Relaxed);
    }
    page_pool.show(pa);
    share(
        first.wrapping_add(VIRTIO_REGISTERS_PAGE as usize),
        pa,
        1,
        PAGE_RW | NON_CACHEABLE_INDEX,
    );
}

/// Physical address of the registers of the first virtio device. Those of the others follow.
static VIRTIO_REGISTERS: AtomicU64 = AtomicU64::new(0);

/// Returns the offset of a physical address from the registers of the first virtio device.
#[inline(always)]
pub fn virtio_place_of(pa: u64) -> u64 {
    pa.wrapping_sub(VIRTIO_REGISTERS.load(Ordering::Relaxed))
}

/// Returns the first page of a virtio device in the block of the VM pages.
const fn virtio_page(device: usize) -> usize {
    layout::shared::VIRTIO.wrapping_add(device.wrapping_mul(VIRTIO_PAGES as usize))
}

/// Returns the page of registers of a virtio device.
pub const fn virtio_registers(device: usize) -> Registers {
    let page = virtio_page(device).wrapping_add(VIRTIO_REGISTERS_PAGE as usize) as u64;
    let address = layout::block(layout::VMS).wrapping_add(page.wrapping_mul(PAGE));
    // SAFETY: [R-MMIO] start-up has mapped the page, which stays mapped and holds nothing that Rust knows of.
    unsafe { Registers::new(address, PAGE) }
}

/// Maps the stack and the state of vCPU `id` in the private maps of the pCPUs with a bit in `pcpus`.
pub fn map_vcpu(page_pool: &PagePool, id: usize, pcpus: u32) {
    let from = page_pool::vcpu_page_number(id);
    let first = layout::vcpu_page(id, vcpu::STACK);
    for index in 0..MAX_PCPUS {
        if pcpus.wrapping_shr(index as u32) & 1 != 0 {
            let table = page_pool.table(page_pool.pa(level3_page(index)));
            let part = (&page_pool.parts.threads, from);
            map_part(page_pool, part, table, first, vcpu::PAGES);
        }
    }
}

/// Returns the number of the page that is the root table of pCPU `index`.
const fn root_page(index: usize) -> usize {
    index.wrapping_mul(PCPU_PAGES)
}

/// Returns the number of the page that is the level-3 table of pCPU `index`.
const fn level3_page(index: usize) -> usize {
    root_page(index).wrapping_add(2)
}

/// Maps pages in the block of the VM pages.
fn share(first: usize, pa: u64, pages: usize, attributes: u64) {
    map_in(vms(), first, pa, pages, attributes);
}

/// Returns the table of the block of the VM pages.
const fn vms() -> *mut u64 {
    (&raw mut VMS_LEVEL3).cast()
}

/// Maps pages of a part of the page pool from a number on in a table, for reading and writing.
fn map_part(
    page_pool: &PagePool,
    (part, from): (&Region, usize),
    table: *mut u64,
    first: usize,
    pages: usize,
) {
    // With all colours they follow one another.
    let run = match part.colours {
        ALL_COLOURS => pages,
        _ => 1,
    };
    for n in (0..pages).step_by(run) {
        let pa = page_pool.page_of(part, from.wrapping_add(n));
        map_in(table, first.wrapping_add(n), pa, run, PAGE_RW);
    }
}

/// Maps pages in a table.
fn map_in(table: *mut u64, first: usize, pa: u64, pages: usize, attributes: u64) {
    for n in 0..pages {
        let at = pa.wrapping_add((n as u64).wrapping_mul(PAGE));
        // SAFETY: [R-TABLES] only the boot pCPU runs, and the entry was empty.
        unsafe { put(table, first.wrapping_add(n), at | attributes) }
    }
}

/// Maps a frame of device registers for all pCPUs, in the block of the VM pages from `page` on.
pub fn share_frame(page: usize, pa: u64, pages: usize) {
    share(page, pa, pages, PAGE_RW | DEVICE_INDEX);
    sysreg::dsb();
    sysreg::isb();
}

/// Returns the frame that [`share_frame`] maps at `page`.
pub const fn shared_frame(page: usize, pages: usize) -> Registers {
    let address = layout::block(layout::VMS).wrapping_add((page as u64).wrapping_mul(PAGE));
    // SAFETY: [R-MMIO] nothing accesses the frame before start-up has mapped it, and it stays
    // mapped.
    unsafe { Registers::new(address, (pages as u64).wrapping_mul(PAGE)) }
}

/// Maps the root of a VM's stage 2 for all pCPUs.
pub fn share_root(vm: usize, pa: u64) {
    share(layout::shared::ROOTS.wrapping_add(vm), pa, 1, PAGE_RW);
    sysreg::dsb();
    sysreg::isb();
}

/// Makes an entry of a root that [`share_root`] has mapped invalid, or valid again if it maps
/// anything. The caller has the claim on the root.
pub fn mark_root(vm: usize, index: usize, valid: bool) {
    let page = layout::shared::ROOTS.wrapping_add(vm % bulkhead_abi::plan::MAX_VMS);
    let offset = (page as u64).wrapping_mul(PAGE);
    let table = layout::block(layout::VMS).wrapping_add(offset) as *mut u64;
    let entry = table.wrapping_add(index % 512);
    // SAFETY: [R-TABLES] `share_root` has mapped the root, and the claim keeps other pCPUs from
    // changing it now.
    let descriptor = unsafe { entry.read_volatile() };
    if descriptor != 0 {
        let marked = descriptor & !1 | u64::from(valid);
        // SAFETY: [R-TABLES] `share_root` has mapped the root, and the claim keeps other pCPUs from
        // changing it now.
        unsafe { put(table, index, marked) }
    }
}

/// Invalidates the translations of a VM on all pCPUs. The VM's root, at `root`, must map nothing.
pub fn forget_vm(vmid: u16, root: u64) {
    let vttbr = u64::from(vmid) << 48 | root;
    // SAFETY: [R-TLB] VTTBR_EL2 names the VMID of the VM, and is restored. Meanwhile a walk for the
    // guest of this pCPU finds nothing in that VM's root, so none of its translations gets that
    // VMID.
    unsafe {
        core::arch::asm!(
            "dsb ishst",
            "mrs {own}, vttbr_el2",
            "msr vttbr_el2, {other}",
            "isb",
            "tlbi vmalls12e1is",
            "dsb ish",
            // Twice: Cortex-A55 2441007 and Cortex-A76 1286807.
            "tlbi vmalls12e1is",
            "dsb ish",
            "msr vttbr_el2, {own}",
            "isb",
            own = out(reg) _, other = in(reg) vttbr,
            options(nostack, preserves_flags)
        )
    }
}

/// Builds the private map of pCPU `index` from its pages of the page pool.
pub fn make_private(page_pool: &PagePool, index: usize, frames: impl IntoIterator<Item = Frame>) {
    let from = root_page(index);
    let page = |n: usize| page_pool.pa(from.wrapping_add(n));
    let (root, level2, level3) = (page(0), page(1), page(2));
    let image = physical((&raw const IMAGE_LEVEL3) as u64);
    let vms = physical((&raw const VMS_LEVEL3) as u64);
    let entries = [
        (root, EL2_GIGABYTE, level2),
        (level2, 0, image),
        (level2, layout::VMS, vms),
        (level2, layout::VCPUS, level3),
        (level2, layout::PRIVATE.wrapping_add(index), level3),
    ];
    for (table, entry, next) in entries {
        // SAFETY: [R-TABLES] only the boot pCPU runs, and the map is not in use.
        unsafe { put(page_pool.table(table), entry, next | TABLE) }
    }
    let third = page_pool.table(level3);
    let map = |first: usize, n: usize, pages: usize| {
        let part = (&page_pool.parts.threads, from.wrapping_add(n));
        map_part(page_pool, part, third, first, pages);
    };
    // The state follows the stack.
    map(
        private::STACK,
        3,
        private::STACK_PAGES + private::STATE_PAGES,
    );
    map(
        private::PCPU,
        3 + private::STACK_PAGES + private::STATE_PAGES,
        private::PCPU_STATE_PAGES,
    );
    map(private::LEVEL2, 1, 1);
    for frame in frames {
        map_in(
            third,
            frame.page,
            frame.pa,
            frame.pages,
            PAGE_RW | DEVICE_INDEX,
        );
    }
    let place = (&raw mut ROOTS)
        .cast::<u64>()
        .wrapping_add(index % MAX_PCPUS);
    // SAFETY: [R-TABLES] only the boot pCPU runs; the place is in the array.
    unsafe { place.write_volatile(root) }
}

const _: () = assert!(private::STATE == private::STACK + private::STACK_PAGES);

/// Adds what a service thread reaches, or a part of it, to the private map of a pCPU: these entries of the table at `root`, as far as they are behind EL2's own.
pub fn add_service_map(page_pool: &mut PagePool, index: usize, root: u64, entries: Range<usize>) {
    let own = page_pool.pa(root_page(index));
    for entry in entries.start.max(EL2_GIGABYTE.wrapping_add(1))..entries.end {
        let tables = page_pool.tables(root).first();
        let descriptor = tables.and_then(|table| table.get(entry)).copied();
        if let Some(descriptor) = descriptor.filter(|descriptor| *descriptor != 0) {
            // SAFETY: [R-TABLES] only the boot pCPU runs, and the map is not in use.
            unsafe { put(page_pool.table(own), entry, descriptor) }
        }
    }
}

/// Sets the MPIDR by which pCPU `index` finds its index.
#[cfg(feature = "spin-table")]
pub fn set_mpidr(index: usize, mpidr: u64) {
    let place = (&raw mut MPIDRS)
        .cast::<u64>()
        .wrapping_add(index % MAX_PCPUS);
    // SAFETY: [R-TABLES] only the boot pCPU runs; the place is in the array.
    unsafe { place.write_volatile(mpidr) }
}

/// Returns the root table of a pCPU's private map.
pub fn root(index: usize) -> u64 {
    let place = (&raw const ROOTS)
        .cast::<u64>()
        .wrapping_add(index % MAX_PCPUS);
    // SAFETY: [R-TABLES] written by the boot pCPU before this one started, not changed since.
    unsafe { place.read_volatile() }
}

/// Adds the block of the VM pages to the boot map.
pub fn share_vm_block(copy_windows: &mut CopyWindows) {
    let table = physical((&raw const VMS_LEVEL3) as u64);
    copy_windows.set(layout::VMS, table | TABLE);
    sysreg::dsb();
    sysreg::isb();
}

/// Returns the physical address of a byte of the image.
pub fn physical(address: u64) -> u64 {
    translate(address) & ADDRESS | address & 0xfff
}

/// Whether this pCPU's map has an address.
pub fn is_mapped(address: u64) -> bool {
    translate(address) & 1 == 0
}

/// Returns PAR_EL1 after a translation by EL2's map.
fn translate(address: u64) -> u64 {
    let par: u64;
    // SAFETY: [R-SYSREG] an address translation instruction; the result register is EL2's.
    unsafe {
        core::arch::asm!("at s1e2r, {}", "isb", "mrs {}, par_el1", in(reg) address, out(reg) par, options(nostack));
    }
    par
}

/// Returns the frame at `page` in the private map of pCPU `index`.
pub fn private_frame(index: usize, page: usize, size: u64) -> Registers {
    // SAFETY: [R-MMIO] mapped by `make_private` for as long as EL2 runs; a pCPU whose map lacks the
    // frame (the UART) does not use it.
    unsafe { Registers::new(layout::private(index, page), size) }
}

/// A plan page is read-only. Checks the constants above against the boot code.
const _: () = assert!(PAGE_RO & !XN == 0x7c3 && PAGE_RW & !XN == 0x743);
