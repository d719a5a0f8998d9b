//! EL2's own translation: private maps for the pCPUs, and windows on memory that EL2 has no standing
//! map of (DDI 0487, D8.3).

use bulkhead_abi::plan::{MAX_PCPUS, PAGE, VM_POOL_PAGES};

use super::bytes;
use super::layout::{self, SLOT, private};
use super::mmio::Registers;
use super::sysreg;

type Table = [u64; 512];

/// Valid table or page, accessed, inner shareable, bit 6 as EL2 requires, Normal memory.
const PAGE_RW: u64 = 0x743 | XN;
const PAGE_RO: u64 = 0x7c3 | XN;
const BLOCK: u64 = 0x741 | XN;
const READ_ONLY: u64 = 1 << 7;
const DEVICE_INDEX: u64 = 1 << 2;
const XN: u64 = 1 << 54;
const TABLE: u64 = 3;

unsafe extern "C" {
    static mut BOOT_LEVEL2: Table;
    static mut IMAGE_LEVEL3: Table;
    static mut VMS_LEVEL3: Table;
    static mut VCPUS_LEVEL3: Table;
    static mut ROOTS: [u64; MAX_PCPUS];
    #[cfg(feature = "spin-table")]
    static mut MPIDRS: [u64; MAX_PCPUS];
}

/// Writes an entry of a translation table.
///
/// # Safety
/// `table` is a translation table of this pCPU's map, mapped for writing, that no other pCPU changes.
unsafe fn put(table: *mut u64, index: usize, descriptor: u64) {
    let entry = table.wrapping_add(index % 512);
    // SAFETY: [R-TABLES] a table has 512 entries; the rest is the caller's promise.
    unsafe { entry.write_volatile(descriptor) }
}

/// How a window may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Normal memory, read.
    Read,
    /// Normal memory, read and write.
    Write,
    /// Device registers.
    Device,
}

/// A level-2 table in use by this pCPU, in which it opens windows.
#[derive(Debug)]
pub struct Windows {
    level2: *mut u64,
}

impl Windows {
    /// The windows of the boot map. Only the boot pCPU calls this, and only before it leaves that map.
    pub fn boot() -> Self {
        Self {
            level2: (&raw mut BOOT_LEVEL2).cast(),
        }
    }

    /// The windows of pCPU `index`, which calls this.
    pub fn of(index: usize) -> Self {
        Self {
            level2: layout::private(index, private::LEVEL2) as *mut u64,
        }
    }

    /// Opens `slot` on the 2 MiB block that holds `pa`; the address of `pa` in it.
    #[inline(never)]
    pub fn open(&mut self, slot: usize, pa: u64, how: Use) -> u64 {
        let attributes = match how {
            Use::Read => BLOCK | READ_ONLY,
            Use::Write => BLOCK,
            Use::Device => BLOCK | DEVICE_INDEX,
        };
        self.set(slot, 0);
        let address = layout::slot(slot);
        // SAFETY: [R-TLB] drops the translation of this slot on this pCPU, which nothing uses now.
        unsafe {
            core::arch::asm!("dsb ishst", "tlbi vae2, {}", "dsb nsh", "isb", in(reg) address >> 12);
        }
        self.set(slot, pa & !SLOT.wrapping_sub(1) | attributes);
        sysreg::dsb();
        sysreg::isb();
        address.wrapping_add(pa % SLOT)
    }

    /// Closes a slot.
    pub fn close(&mut self, slot: usize) {
        self.set(slot, 0);
        // SAFETY: [R-TLB] as in `open`.
        unsafe {
            core::arch::asm!("dsb ishst", "tlbi vae2, {}", "dsb nsh", "isb", in(reg) layout::slot(slot) >> 12);
        }
    }

    fn set(&mut self, slot: usize, descriptor: u64) {
        // SAFETY: [R-TABLES] `level2` is a table that only this pCPU changes.
        unsafe { put(self.level2, slot, descriptor) }
    }

    /// Opens a window on a frame of device registers.
    pub fn registers(&mut self, slot: usize, pa: u64, size: u64) -> Registers {
        let address = self.open(slot, pa, Use::Device);
        let size = size.min(SLOT.wrapping_sub(pa % SLOT));
        // SAFETY: [R-MMIO] just mapped; whoever opens the slot again makes a new value.
        unsafe { Registers::new(address, size) }
    }
}

/// Takes out of the map of the image what lies behind the plan.
pub fn drop_behind(plan_end: u64) {
    let first = plan_end.div_ceil(PAGE) as usize;
    let table = (&raw mut IMAGE_LEVEL3).cast();
    for page in first..512 {
        // SAFETY: [R-TABLES] the boot pCPU alone runs.
        unsafe { put(table, page, 0) }
    }
    // SAFETY: [R-TLB] nothing behind the plan is in use.
    unsafe { core::arch::asm!("dsb ishst", "tlbi alle2", "dsb nsh", "isb") }
}

/// The pool, mapped by the boot map while start-up hands it out.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    address: u64,
    pa: u64,
    pages: usize,
}

impl Pool {
    /// Maps the pool at `pa` and zeroes it.
    pub fn open(windows: &mut Windows, pa: u64, pages: usize) -> Self {
        let size = (pages as u64).wrapping_mul(PAGE);
        let (mut slot, mut block) = (layout::POOL, pa & !SLOT.wrapping_sub(1));
        // The proof says that there are slots enough.
        while block < pa.wrapping_add(size) {
            windows.open(slot, block, Use::Write);
            slot = slot.wrapping_add(1);
            block = block.wrapping_add(SLOT);
        }
        let address = layout::slot(layout::POOL).wrapping_add(pa % SLOT);
        let pool = Self { address, pa, pages };
        // SAFETY: [R-POOL] the pages are the pool's, just mapped for writing.
        unsafe { bytes::zero_lines(address, size) }
        pool
    }

    /// Physical address of a page.
    pub const fn pa(self, page: usize) -> u64 {
        self.pa.wrapping_add((page as u64).wrapping_mul(PAGE))
    }

    const fn va(self, page: usize) -> u64 {
        self.address.wrapping_add((page as u64).wrapping_mul(PAGE))
    }

    /// Some pages as translation tables.
    pub fn tables(&mut self, first: usize, count: usize) -> &mut [Table] {
        let count = count.min(self.pages.saturating_sub(first));
        let address = self.va(first) as *mut Table;
        // SAFETY: [R-POOL] the pages are mapped, zeroed, and lent by the one `&mut Pool`; any bytes are a table.
        unsafe { core::slice::from_raw_parts_mut(address, count) }
    }
}

/// A frame of device registers in a pCPU's private map.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Its first page in the private slot.
    pub page: usize,
    /// Its physical address.
    pub pa: u64,
    /// Its pages.
    pub pages: usize,
}

/// Shows the pages of a VM, which lie together, to all pCPUs.
pub fn share_vm_pages(vm: usize, pa: u64) {
    let first = vm.wrapping_mul(VM_POOL_PAGES as usize);
    share(first, pa, VM_POOL_PAGES as usize, PAGE_RW);
}

/// Shows stack and state of vCPU `id`, which lie together, to all pCPUs.
pub fn share_vcpu_pages(id: usize, pa: u64) {
    let first = id
        .wrapping_mul(layout::vcpu::STRIDE)
        .wrapping_add(layout::vcpu::STACK);
    let table = (&raw mut VCPUS_LEVEL3).cast();
    share_in(table, first, pa, layout::vcpu::POOL_PAGES, PAGE_RW);
}

/// Puts pages into the slot of the VM pages.
fn share(first: usize, pa: u64, pages: usize, attributes: u64) {
    share_in((&raw mut VMS_LEVEL3).cast(), first, pa, pages, attributes);
}

/// Puts pages into a table that all pCPUs have.
fn share_in(table: *mut u64, first: usize, pa: u64, pages: usize, attributes: u64) {
    for n in 0..pages {
        let at = pa.wrapping_add((n as u64).wrapping_mul(PAGE));
        // SAFETY: [R-TABLES] the boot pCPU alone runs, and the entry was empty.
        unsafe { put(table, first.wrapping_add(n), at | attributes) }
    }
}

/// Shows a frame of device registers to all pCPUs, in the slot of the VM pages from `page` on.
pub fn share_frame(page: usize, pa: u64, pages: usize) {
    share(page, pa, pages, PAGE_RW | DEVICE_INDEX);
    sysreg::dsb();
    sysreg::isb();
}

/// The frame that [`share_frame`] shows.
pub const fn shared_frame(page: usize, pages: usize) -> Registers {
    let address = layout::slot(layout::VMS).wrapping_add((page as u64).wrapping_mul(PAGE));
    // SAFETY: [R-MMIO] nobody touches it before start-up has shown it, and it stays.
    unsafe { Registers::new(address, (pages as u64).wrapping_mul(PAGE)) }
}

/// Shows the root of a VM's stage 2 to all pCPUs.
pub fn share_root(vm: usize, pa: u64) {
    share(layout::shared::ROOTS.wrapping_add(vm), pa, 1, PAGE_RW);
    sysreg::dsb();
    sysreg::isb();
}

/// Makes an entry of such a root invalid, or valid again if it maps anything. Whoever calls this has the grip on it.
pub fn mark_root(vm: usize, index: usize, valid: bool) {
    let page = layout::shared::ROOTS.wrapping_add(vm % bulkhead_abi::plan::MAX_VMS);
    let offset = (page as u64).wrapping_mul(PAGE);
    let table = layout::slot(layout::VMS).wrapping_add(offset) as *mut u64;
    let entry = table.wrapping_add(index % 512);
    // SAFETY: [R-TABLES] `share_root` has mapped it, and nobody else changes it now.
    let descriptor = unsafe { entry.read_volatile() };
    if descriptor != 0 {
        let marked = descriptor & !1 | u64::from(valid);
        // SAFETY: [R-TABLES] as above.
        unsafe { put(table, index, marked) }
    }
}

/// Drops what all pCPUs have of the translations of a VM whose root, at `root`, maps nothing now.
pub fn forget_vm(vmid: u16, root: u64) {
    let vttbr = u64::from(vmid) << 48 | root;
    // SAFETY: [R-TLB] the VMID is named by VTTBR_EL2, which is put back. Meanwhile a walk for the guest of this pCPU finds
    // nothing there, so none of its translations gets that VMID.
    unsafe {
        core::arch::asm!(
            "dsb ishst",
            "mrs {own}, vttbr_el2",
            "msr vttbr_el2, {other}",
            "isb",
            "tlbi vmalls12e1is",
            "dsb ish",
            "msr vttbr_el2, {own}",
            "isb",
            own = out(reg) _, other = in(reg) vttbr,
            options(nostack, preserves_flags)
        )
    }
}

/// Makes the private map of pCPU `index` from its pages of the pool, the first of which is `first`.
pub fn make_private(
    pool: &mut Pool,
    index: usize,
    first: usize,
    frames: impl IntoIterator<Item = Frame>,
) {
    let page = |n: usize| first.wrapping_add(n);
    let (level2, level3) = (pool.pa(page(1)), pool.pa(page(2)));
    let (stack, state) = (pool.pa(page(3)), pool.pa(page(3 + private::STACK_PAGES)));
    let pcpu = pool.pa(page(3 + private::STACK_PAGES + private::STATE_PAGES));
    let image = physical((&raw const IMAGE_LEVEL3) as u64);
    let vms = physical((&raw const VMS_LEVEL3) as u64);
    let vcpus = physical((&raw const VCPUS_LEVEL3) as u64);
    let [root, second, third] = pool.tables(first, 3) else {
        return;
    };
    // The gigabyte of EL2 is the 128th.
    root[128] = level2 | TABLE;
    second[0] = image | TABLE;
    second[layout::VMS] = vms | TABLE;
    second[layout::VCPUS] = vcpus | TABLE;
    if let Some(slot) = second.get_mut(layout::PRIVATE.wrapping_add(index)) {
        *slot = level3 | TABLE;
    }
    let mut map = |first: usize, pa: u64, pages: usize, attributes: u64| {
        for (n, slot) in third.iter_mut().skip(first).take(pages).enumerate() {
            *slot = pa.wrapping_add((n as u64).wrapping_mul(PAGE)) | attributes;
        }
    };
    map(private::STACK, stack, private::STACK_PAGES, PAGE_RW);
    map(private::STATE, state, private::STATE_PAGES, PAGE_RW);
    map(private::PCPU, pcpu, private::PCPU_STATE_PAGES, PAGE_RW);
    map(private::LEVEL2, level2, 1, PAGE_RW);
    for frame in frames {
        map(frame.page, frame.pa, frame.pages, PAGE_RW | DEVICE_INDEX);
    }
    let root = pool.pa(first);
    let place = (&raw mut ROOTS)
        .cast::<u64>()
        .wrapping_add(index % MAX_PCPUS);
    // SAFETY: [R-TABLES] the boot pCPU alone runs; the place is in the array.
    unsafe { place.write_volatile(root) }
}

/// By which MPIDR pCPU `index` finds its index.
#[cfg(feature = "spin-table")]
pub fn set_mpidr(index: usize, mpidr: u64) {
    let place = (&raw mut MPIDRS)
        .cast::<u64>()
        .wrapping_add(index % MAX_PCPUS);
    // SAFETY: [R-TABLES] the boot pCPU alone runs; the place is in the array.
    unsafe { place.write_volatile(mpidr) }
}

/// Root table of a pCPU's private map.
pub fn root(index: usize) -> u64 {
    let place = (&raw const ROOTS)
        .cast::<u64>()
        .wrapping_add(index % MAX_PCPUS);
    // SAFETY: [R-TABLES] written by the boot pCPU before this one started, not changed since.
    unsafe { place.read_volatile() }
}

/// Makes the VM pages' table and the slot for it part of the boot map.
pub fn share_vm_slot(windows: &mut Windows) {
    let table = physical((&raw const VMS_LEVEL3) as u64);
    windows.set(layout::VMS, table | TABLE);
    sysreg::dsb();
    sysreg::isb();
}

/// Physical address of a byte of the image.
pub fn physical(address: u64) -> u64 {
    translate(address) & 0x0000_ffff_ffff_f000 | address & 0xfff
}

/// Whether this pCPU's map has an address.
pub fn is_mapped(address: u64) -> bool {
    translate(address) & 1 == 0
}

/// PAR_EL1 after a translation by EL2's map.
fn translate(address: u64) -> u64 {
    let par: u64;
    // SAFETY: [R-SYSREG] an address translation instruction; the result register is EL2's.
    unsafe {
        core::arch::asm!("at s1e2r, {}", "isb", "mrs {}, par_el1", in(reg) address, out(reg) par, options(nostack));
    }
    par
}

/// The frame that the private map of pCPU `index` has at `page`.
pub fn private_frame(index: usize, page: usize, size: u64) -> Registers {
    // SAFETY: [R-MMIO] mapped by `make_private` for as long as EL2 runs; a pCPU that does not have it
    // (the UART) does not use it.
    unsafe { Registers::new(layout::private(index, page), size) }
}

/// A plan page is read-only; used to check the constants above against the boot code.
const _: () = assert!(PAGE_RO & !XN == 0x7c3 && PAGE_RW & !XN == 0x743);
