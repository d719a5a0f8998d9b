//! The pages in which the modules above `hw` store the state of each pCPU, vCPU and VM. This module
//! knows where the pages lie, not what is in them: the crate implements [`States`] for [`El2`]
//! once, and there can be no second implementation, so each page has one type.

use core::sync::atomic::AtomicU64;

use bulkhead_abi::plan::{MAX_VIRTIO_DEVICES, PAGE, STOLEN_TIME_PAGE, VIRTIO_PAGES, VM_PAGES};
use bulkhead_abi::shared_page::stop::WORD;
use bulkhead_core::cpu::keys::Key;
use bulkhead_core::cpu::pvtime;
use bulkhead_core::sched::SLOTS;
use bulkhead_core::vgic::VCPUS;

use super::layout::{self, private, vcpu};

/// The types of EL2's state.
pub trait States {
    /// The state that pCPUs share about a VM: made of atomics and claims, for which zeros are the
    /// value before the VM starts ([R-VM]).
    type Vm: 'static;
    /// The state that pCPUs share about a virtio device: made of atomics and claims likewise.
    type Virtio: 'static;
    /// The state of a vCPU, which starts with the register frame.
    type Vcpu: VcpuState + 'static;
    /// The state that the threads of a pCPU share.
    type Pcpu: PcpuState + 'static;
}

/// The type for which this hypervisor implements [`States`].
#[derive(Debug)]
pub struct El2;

/// The state of a VM.
pub type Vm = <El2 as States>::Vm;
/// The state of a virtio device.
pub type Virtio = <El2 as States>::Virtio;
/// The state of a vCPU and of its thread.
pub type Vcpu = <El2 as States>::Vcpu;
/// The state of a pCPU.
pub type Pcpu = <El2 as States>::Pcpu;

/// The parts of a vCPU's state that threads need.
pub trait VcpuState {
    /// Returns the state of the idle thread of pCPU `index`.
    fn idle(index: usize) -> Self;
    /// Returns the slot on the pCPU, or [`IDLE`].
    fn slot(&self) -> usize;
    /// Returns the row of the vCPU in the plan.
    fn id(&self) -> usize;
    /// Returns the index of the pCPU.
    fn index(&self) -> usize;
    /// Hands over the one reference to the state of the pCPU.
    fn set_pcpu(&mut self, pcpu: &'static mut Pcpu);
}

/// The parts of a pCPU's state that threads need, by slot; the last entry is that of the idle
/// thread.
pub trait PcpuState {
    /// Returns the state of pCPU `index` before it has started anything.
    fn new(index: usize) -> Self;
    /// Returns the stack pointers of the threads that do not run.
    fn stacks(&mut self) -> &mut [u64; SLOTS + 1];
    /// Returns the references to vCPUs whose threads rest.
    fn resting(&mut self) -> &mut [Option<&'static mut Vcpu>; SLOTS + 1];
}

/// The slot of the idle thread.
pub const IDLE: usize = SLOTS;

const _: () = assert!(size_of::<Vcpu>() + size_of::<[Key; 2]>() <= private::STATE_PAGES * 4096);
const _: () = assert!(size_of::<Pcpu>() <= private::PCPU_STATE_PAGES * 4096);
const _: () = assert!(size_of::<Vm>() as u64 <= STOLEN_TIME_PAGE as u64 * PAGE);
const _: () = assert!(size_of::<Virtio>() as u64 <= PAGE);
const _: () = assert!(pvtime::STRIDE * VCPUS as u64 <= WORD && WORD + 8 <= PAGE);

/// Returns the page of a VM.
pub fn vm_page(vm: usize) -> &'static Vm {
    let address =
        layout::block(layout::VMS).wrapping_add((vm as u64).wrapping_mul(VM_PAGES as u64 * PAGE));
    // SAFETY: [R-VM] start-up has mapped and zeroed the page of every VM of the plan; zeros are a
    // valid `Vm`, which is made of atomics, and the page is never unmapped.
    unsafe { &*(address as *const Vm) }
}

/// Returns the page of a virtio device (row of the plan).
pub fn virtio_page(device: usize) -> &'static Virtio {
    let page = layout::shared::VIRTIO
        .wrapping_add((device % MAX_VIRTIO_DEVICES).wrapping_mul(VIRTIO_PAGES as usize));
    let address = layout::block(layout::VMS).wrapping_add((page as u64).wrapping_mul(PAGE));
    // SAFETY: [R-VM] start-up has mapped and zeroed the page of every device of the plan; zeros are a valid `Virtio`, which is made
    // of atomics and claims, and the page is never unmapped.
    unsafe { &*(address as *const Virtio) }
}

/// Returns the word in which vCPU `number` of a VM reads its stolen time. The guest's mapping of
/// the page is read-only.
pub fn stolen_time(vm: usize, number: usize) -> &'static AtomicU64 {
    let page =
        (core::ptr::from_ref(vm_page(vm)) as u64).wrapping_add(STOLEN_TIME_PAGE as u64 * PAGE);
    let place = pvtime::STRIDE.wrapping_mul(number as u64 % VCPUS as u64);
    let address = page.wrapping_add(place).wrapping_add(pvtime::TIME);
    // SAFETY: [R-VM] start-up has mapped and zeroed the pages of every VM of the plan, of which the
    // stolen time has a separate one; zeros are a valid number, and the page is never unmapped.
    unsafe { &*(address as *const AtomicU64) }
}

/// Returns the word by which a VM is asked to stop. The guest's mapping of the page is read-only.
pub fn stop_word(vm: usize) -> &'static AtomicU64 {
    let page =
        (core::ptr::from_ref(vm_page(vm)) as u64).wrapping_add(STOLEN_TIME_PAGE as u64 * PAGE);
    let address = page.wrapping_add(WORD);
    // SAFETY: [R-VM] start-up has mapped and zeroed the pages of every VM of the plan; the word lies behind the stolen
    // time in a page of atomics, zeros are a valid number, and the page is never unmapped.
    unsafe { &*(address as *const AtomicU64) }
}

/// Returns the keys that lie behind the state of vCPU `id` (row of the plan), so that only pCPUs on
/// which it may run map them: that of its VM, which the first vCPU has, and that of its generator
/// until this has been made.
pub fn keys(id: usize) -> &'static [Key; 2] {
    // SAFETY: [R-KEYS] the caller runs on a pCPU on which the vCPU may run, and such a pCPU maps
    // these pages for as long as EL2 runs.
    unsafe { keys_before(layout::vcpu(id, vcpu::STATE + vcpu::STATE_PAGES)) }
}

/// Returns the keys in the pages of a vCPU that end at an address.
///
/// # Safety
/// The pages are mapped for as long as the reference is used, and were zeroed before they were used.
pub(super) const unsafe fn keys_before<'a>(end: u64) -> &'a [Key; 2] {
    let place = end.wrapping_sub(size_of::<[Key; 2]>() as u64) as *const [Key; 2];
    // SAFETY: [R-KEYS] the caller's promise; zeros are valid keys, which are made of atomics, and
    // the state before them does not reach so far.
    unsafe { &*place }
}

/// Returns the address of the state of a pCPU's idle thread.
pub fn idle_address(index: usize) -> u64 {
    layout::private(index, private::STATE)
}
