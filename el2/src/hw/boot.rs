//! The assembly at the start of the image, the vectors, and their interfaces to Rust.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bulkhead_abi::plan::{Header, MAGIC, MAX_PLAN, PAGE, VERSION};

use super::layout::{self, private};
use super::mmio::Registers;
use super::mmu::{self, CopyWindows, Use};
use super::plan::plan;
use super::sysreg;
use super::uart::{self, EARLY, KIND, Uart};

core::arch::global_asm!(
    include_str!("boot.s"),
    plan_pages = const MAX_PLAN / PAGE,
);
#[cfg(feature = "spin-table")]
core::arch::global_asm!(include_str!("waiting.s"));
core::arch::global_asm!(
    include_str!("refuse.s"),
    magic = const MAGIC,
    version_at = const offset_of!(Header, version),
    version = const VERSION,
    uart_at = const offset_of!(Header, board.uart),
    kind_at = const offset_of!(Header, board.uart_kind),
    kind = const KIND as u32,
    full_at = const EARLY.full.0,
    full = const EARLY.full.1,
    full_is = const EARLY.full.2,
    data_at = const EARLY.data,
    idle_at = const EARLY.idle.0,
    idle = const EARLY.idle.1,
    idle_is = const EARLY.idle.2,
);
core::arch::global_asm!(include_str!("vectors.s"), steps = const cfg!(any(feature = "io", feature = "managed")) as u32);
#[cfg(feature = "managed")]
core::arch::global_asm!(include_str!("rare.s"));

unsafe extern "C" {
    static __el2_start: u8;
    static __start_end: u8;
    static __el2_end: u8;
    static BOOT_STACK: u8;
    static BOOT_STACK_TOP: u8;
    fn enter_private_map(index: u64, root: u64) -> !;
}

/// Returns the part of the image that follows the EL2 binary and is mapped: as much as the largest plan has.
pub fn behind_el2() -> &'static [u8] {
    let start = &raw const __el2_end;
    // SAFETY: [R-IMAGE] the boot code mapped it read-only, and nothing writes it; after
    // [`drop_behind`] nothing may keep a reference to more than the plan.
    unsafe { core::slice::from_raw_parts(start, MAX_PLAN as usize) }
}

/// Unmaps what follows the plan, of this size, in the part that is mapped.
pub fn drop_behind(plan: u64) {
    let start = (&raw const __el2_end) as u64;
    let plan_end = start.wrapping_add(plan.next_multiple_of(PAGE));
    mmu::unmap(plan_end, start.wrapping_add(MAX_PLAN));
}

/// Returns the boot device tree at `pa`, if there is one: at most 2 MiB, mapped by the boot map.
pub fn boot_tree(copy_windows: &mut CopyWindows, pa: u64) -> Option<&'static [u8]> {
    if pa == 0 || !pa.is_multiple_of(8) {
        return None;
    }
    let address = copy_windows.open(layout::TREE, pa, Use::Read);
    copy_windows.open(
        layout::TREE.wrapping_add(1),
        pa.wrapping_add(layout::BLOCK_SIZE),
        Use::Read,
    );
    // SAFETY: [R-TREE] two blocks are mapped, so 2 MiB from any address in the first are.
    let all =
        unsafe { core::slice::from_raw_parts(address as *const u8, layout::BLOCK_SIZE as usize) };
    let size = bulkhead_core::boot_tree::BootTree::size(all)?;
    all.get(..usize::try_from(size).ok()?)
}

/// Leaves the boot map for the private map of pCPU `index` and continues in `pcpu_main`.
pub fn become_pcpu(index: usize) -> ! {
    // SAFETY: [R-ENTER] `mmu::make_private` has built the map, with a stack.
    unsafe { enter_private_map(index as u64, mmu::root(index)) }
}

/// Number of pCPUs that have started.
static STARTED: AtomicUsize = AtomicUsize::new(0);

/// Tells that this pCPU has started. The last of them unmaps, for all, what only start-up used: its code and the boot stack.
#[inline(always)]
pub fn has_started() {
    let before = STARTED.fetch_add(1, Ordering::AcqRel);
    if before.wrapping_add(1) == plan().pcpus.len() {
        mmu::unmap(
            (&raw const __el2_start) as u64,
            (&raw const __start_end) as u64,
        );
        mmu::unmap(
            (&raw const BOOT_STACK) as u64,
            (&raw const BOOT_STACK_TOP) as u64,
        );
    }
}

/// Zeroes what a function that has just returned may have left on the boot stack, which all pCPUs
/// map.
#[inline(always)]
pub fn forget_stack() {
    // SAFETY: [R-BOOT-STACK] nothing below SP is in use; the boot stack goes on for so many bytes.
    unsafe {
        core::arch::asm!(
            "mov {end}, sp",
            "sub {at}, {end}, #1024",
            "2: stp xzr, xzr, [{at}], #16",
            "stp xzr, xzr, [{at}], #16",
            "cmp {at}, {end}",
            "b.lo 2b",
            at = out(reg) _, end = out(reg) _,
        );
    }
}

/// Makes everything written so far visible to a pCPU that starts.
pub fn publish() {
    sysreg::dsb();
    sysreg::isb();
}

/// The address of the UART in the boot map, for last words.
static BOOT_UART: AtomicU64 = AtomicU64::new(0);

/// Stores the copy window on the UART, during start-up.
pub fn set_uart(uart: Uart) {
    BOOT_UART.store(uart.0.base(), Ordering::Relaxed);
}

/// Returns the UART if this pCPU's map has it: the boot map, while start-up runs, or the private
/// map of the pCPU that drains the console.
pub fn uart_at_hand() -> Option<Uart> {
    let own = sysreg::thread();
    let address = if own == 0 {
        BOOT_UART.load(Ordering::Relaxed)
    } else {
        let blocks = own.wrapping_sub(layout::block(layout::PRIVATE)) / layout::BLOCK_SIZE;
        let (_, within) = uart::page_of(plan().header.board.uart);
        layout::private(blocks as usize, private::UART).wrapping_add(within)
    };
    // SAFETY: [R-MMIO] used only if the page is mapped, and only the UART is ever mapped there.
    let registers = unsafe { Registers::new(address, PAGE) };
    mmu::is_mapped(address).then_some(Uart(registers))
}
