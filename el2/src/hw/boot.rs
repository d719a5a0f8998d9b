//! The assembly at the start of the image, the vectors, and what ties them to Rust.

use core::mem::{MaybeUninit, offset_of};
use core::sync::atomic::{AtomicU64, Ordering};

use bulkhead_abi::plan::{
    EL2_WINDOW, Header, MAGIC, PAGE, STOLEN_TIME_PAGE, VERSION, VM_POOL_PAGES,
};
use bulkhead_core::cpu::pvtime;
use bulkhead_core::plan::Plan;
use bulkhead_core::vgic::VCPUS;

use super::gic::Taken;
use super::layout::{self, private};
use super::mmio::Registers;
use super::mmu::{self, Use, Windows};
use super::sysreg;
use super::uart::{EARLY, KIND, Uart};
use crate::pcpu::Pcpu;
use crate::vcpu::Vcpu;
use crate::vm::Vm;

core::arch::global_asm!(include_str!("boot.s"));
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
    data_at = const EARLY.data,
    idle_at = const EARLY.idle.0,
    idle = const EARLY.idle.1,
    idle_is = const EARLY.idle.2,
);
core::arch::global_asm!(include_str!("vectors.s"));

unsafe extern "C" {
    static __el2_start: u8;
    static __el2_end: u8;
    fn enter_private_map(index: u64, root: u64) -> !;
    fn rare_interrupt(state: *mut u8, begin: u64, taken: Taken);
}

/// Bytes of the EL2 binary in the image: the plan follows.
pub fn el2_size() -> u64 {
    ((&raw const __el2_end) as u64).wrapping_sub((&raw const __el2_start) as u64)
}

/// What follows the EL2 binary in the image, up to the end of the part that is mapped.
pub fn behind_el2() -> &'static [u8] {
    let start = &raw const __el2_end;
    let size = EL2_WINDOW.saturating_sub(el2_size()) as usize;
    // SAFETY: [R-IMAGE] the boot code mapped it read-only, nobody writes it; who keeps a reference to
    // more than the plan after `mmu::drop_behind` is told not to there.
    unsafe { core::slice::from_raw_parts(start, size) }
}

/// The boot device tree at `pa`, if there is one: at most 2 MiB, mapped by the boot map.
pub fn boot_tree(windows: &mut Windows, pa: u64) -> Option<&'static [u8]> {
    if pa == 0 || !pa.is_multiple_of(8) {
        return None;
    }
    let address = windows.open(layout::TREE, pa, Use::Read);
    windows.open(
        layout::TREE.wrapping_add(1),
        pa.wrapping_add(layout::SLOT),
        Use::Read,
    );
    // SAFETY: [R-TREE] two blocks are mapped, so 2 MiB from any address in the first are.
    let all = unsafe { core::slice::from_raw_parts(address as *const u8, layout::SLOT as usize) };
    let size = bulkhead_core::boot_tree::BootTree::size(all)?;
    all.get(..usize::try_from(size).ok()?)
}

/// Leaves the boot map for the private map of pCPU `index` and goes on in [`pcpu_main`].
pub fn become_pcpu(index: usize) -> ! {
    // SAFETY: [R-ENTER] `mmu::make_private` has made the map and its stack.
    unsafe { enter_private_map(index as u64, mmu::root(index)) }
}

/// The page of a VM.
pub fn vm_page(vm: usize) -> &'static Vm {
    let address = layout::slot(layout::VMS)
        .wrapping_add((vm as u64).wrapping_mul(VM_POOL_PAGES as u64 * PAGE));
    // SAFETY: [R-VM] start-up has mapped and zeroed the page of every VM of the plan; zeros are a `Vm`,
    // which is made of atomics, and it is never unmapped.
    unsafe { &*(address as *const Vm) }
}

/// Where vCPU `number` of a VM is told its stolen time. The guest has the page to read.
pub fn stolen_time(vm: usize, number: usize) -> &'static AtomicU64 {
    let page =
        (core::ptr::from_ref(vm_page(vm)) as u64).wrapping_add(STOLEN_TIME_PAGE as u64 * PAGE);
    let place = pvtime::STRIDE.wrapping_mul(number as u64 % VCPUS as u64);
    let address = page.wrapping_add(place).wrapping_add(pvtime::TIME);
    // SAFETY: [R-VM] as above, and the page behind that of the VM is one of its own; zeros are a number.
    unsafe { &*(address as *const AtomicU64) }
}

/// The way into Rust of the boot pCPU, from `boot.s`.
#[unsafe(no_mangle)]
extern "C" fn primary(tree: u64, load: u64) -> ! {
    crate::start::primary(tree, load)
}

/// The way into Rust of every pCPU, in its private map; `state` is where the state of its idle thread goes.
#[unsafe(no_mangle)]
extern "C" fn pcpu_main(index: u64, state: u64) -> ! {
    let index = index as usize;
    let (pcpu, place) = (
        layout::private(index, private::PCPU) as *mut Pcpu,
        state as *mut Vcpu,
    );
    // SAFETY: [R-STATE] the pages are mapped, private to this pCPU, and hold nothing yet.
    unsafe { make_pcpu(pcpu, index) };
    // SAFETY: [R-STATE] as above.
    unsafe { make_idle(place, index) };
    // SAFETY: [R-STATE] this is the one reference: the idle thread never enters a guest.
    let vcpu = unsafe { &mut *place };
    // SAFETY: [R-STATE] this is the one reference; threads hand it on when they switch.
    vcpu.pcpu = Some(unsafe { &mut *pcpu });
    crate::start::pcpu(vcpu)
}

/// Makes what the threads of a pCPU share. A function of its own, because the stack has no room for more than one such value.
///
/// # Safety
/// `place` is mapped, and nobody has a reference to it.
#[inline(never)]
unsafe fn make_pcpu(place: *mut Pcpu, index: usize) {
    // SAFETY: [R-STATE] the caller's promise.
    unsafe { place.write(Pcpu::new(index)) }
}

/// Makes the state of an idle thread, as [`make_pcpu`].
///
/// # Safety
/// As of [`make_pcpu`].
#[inline(never)]
pub unsafe fn make_idle(place: *mut Vcpu, index: usize) {
    // SAFETY: [R-STATE] the caller's promise.
    unsafe { place.write(Vcpu::idle(index)) }
}

const _: () = assert!(size_of::<Vcpu>() <= private::STATE_PAGES * 4096);
const _: () = assert!(size_of::<Pcpu>() <= private::PCPU_STATE_PAGES * 4096);
const _: () = assert!(size_of::<Vm>() as u64 <= STOLEN_TIME_PAGE as u64 * PAGE);

/// Where the thread of a vCPU stays that is off. A symbol of its own, so that measurements can tell: what
/// happens in here delays no guest of it.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn el2_idle(vcpu: &mut Vcpu) -> ! {
    crate::idle::idle(vcpu)
}

/// Where pCPU `index`, this one, waits if it has nothing to run. A symbol of its own for the same reason.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn el2_wait(index: usize) {
    super::gic::gppt::wait(index);
}

/// Handles one pending interrupt between two slices of long work; `false` if there is none. A symbol of its own for the
/// same reason: no slice is longer than what lies between two calls.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn el2_poll(vcpu: &mut Vcpu) -> bool {
    crate::idle::poll(vcpu)
}

/// Where the thread of a vCPU stays that stands still, because its VM is paused. A symbol of its own for the same
/// reason.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn el2_paused(vcpu: &mut Vcpu) {
    crate::lifecycle::wait_while_paused(vcpu);
}

/// From the vectors: `vcpu` is the one reference to the state of the vCPU that runs.
#[unsafe(no_mangle)]
extern "C" fn sync_exit(vcpu: &mut Vcpu, esr: u64, class: u64) {
    crate::dispatch::synchronous(vcpu, esr, class);
}

/// From the vectors, as `sync_exit`.
#[unsafe(no_mangle)]
extern "C" fn data_exit(vcpu: &mut Vcpu, esr: u64) {
    crate::dispatch::data_abort(vcpu, esr);
}

/// From the vectors, as `sync_exit`.
#[unsafe(no_mangle)]
extern "C" fn sysreg_exit(vcpu: &mut Vcpu, esr: u64) {
    crate::dispatch::system_register(vcpu, esr);
}

/// From the vectors, as `sync_exit`.
#[unsafe(no_mangle)]
extern "C" fn irq_exit(vcpu: &mut Vcpu) {
    crate::dispatch::interrupt(vcpu);
}

/// Handles an interrupt that is none of the usual ones, by way of the vectors.
#[inline(always)]
pub fn handle_rare_interrupt(vcpu: &mut Vcpu, begin: u64, taken: Taken) {
    let state = core::ptr::from_mut(vcpu).cast();
    // SAFETY: [R-STATE] it stores registers in the frame, at the start of the state, and calls
    // `rare_interrupt_exit` with the same reference.
    unsafe { rare_interrupt(state, begin, taken) }
}

/// From `rare_interrupt`, as `sync_exit`.
#[unsafe(no_mangle)]
extern "C" fn rare_interrupt_exit(vcpu: &mut Vcpu, begin: u64, taken: Taken) {
    crate::dispatch::rare_interrupt(vcpu, begin, taken);
}

/// From the vectors, as `sync_exit`.
#[unsafe(no_mangle)]
extern "C" fn fiq_exit(vcpu: &mut Vcpu) {
    crate::dispatch::fast_interrupt(vcpu);
}

/// From the vectors, as `sync_exit`.
#[unsafe(no_mangle)]
extern "C" fn serror_exit(vcpu: &mut Vcpu) {
    crate::dispatch::serror(vcpu);
}

/// The plan, once start-up has proven it.
pub fn plan() -> &'static Plan<'static> {
    let plan = (&raw const PLAN).cast();
    // SAFETY: [R-PLAN] written once by the boot pCPU before any other pCPU or guest runs.
    unsafe { &*plan }
}

/// Keeps the plan. Once, by the boot pCPU, before anything asks for it.
pub fn keep_plan(plan: Plan<'static>) {
    let place = &raw mut PLAN;
    // SAFETY: [R-PLAN] nobody holds a reference yet.
    unsafe { place.write(MaybeUninit::new(plan)) }
}

static mut PLAN: MaybeUninit<Plan<'static>> = MaybeUninit::uninit();

/// An exception at EL2 itself: a bug of EL2. Says so and stops this pCPU.
#[unsafe(no_mangle)]
extern "C" fn el2_exception(kind: u64, esr: u64, elr: u64, far: u64) -> ! {
    crate::start::el2_exception(kind, esr, elr, far)
}

/// Address of the state of a pCPU's idle thread.
pub fn idle_address(index: usize) -> u64 {
    layout::private(index, private::STATE)
}

/// Makes everything written so far visible to a pCPU that starts.
pub fn publish() {
    sysreg::dsb();
    sysreg::isb();
}

/// Address of the UART in the boot map, for last words.
static BOOT_UART: AtomicU64 = AtomicU64::new(0);

/// Start-up has opened a window on the UART.
pub fn keep_uart(uart: Uart) {
    BOOT_UART.store(uart.0.base(), Ordering::Relaxed);
}

/// The UART if this pCPU's map has it: the boot map, while start-up runs, or the private map of the pCPU
/// that drains the console.
pub fn uart_at_hand() -> Option<Uart> {
    let own = sysreg::thread();
    let address = if own == 0 {
        BOOT_UART.load(Ordering::Relaxed)
    } else {
        let slots = own.wrapping_sub(layout::slot(layout::PRIVATE)) / layout::SLOT;
        layout::private(slots as usize, private::UART)
    };
    // SAFETY: [R-MMIO] used only if the page is mapped, and only the UART is ever mapped there.
    let registers = unsafe { Registers::new(address, PAGE) };
    mmu::is_mapped(address).then_some(Uart(registers))
}
