//! Threads of EL2: each vCPU has a thread with a stack on the pCPU where the vCPU runs, and each
//! pCPU has an idle thread. A thread runs until it switches to another one.

use super::layout::{self, private, vcpu};
use super::state::{IDLE, Pcpu, PcpuState, Vcpu, VcpuState, idle_address};
use super::upcall;

core::arch::global_asm!(include_str!("switch.s"));

unsafe extern "C" {
    fn switch_stack();
    fn start_thread();
    fn rest_thread();
    fn pass_to_guest();
}

/// The size of the frame that [`switch_stack`] restores from a stack: x19, x29, x30.
const KEPT: u64 = 4 * 8;

/// Creates the state of vCPU `id` (row of the plan), with the value of an idle thread of pCPU
/// `index`, and the thread of the vCPU. Returns the state and the stack pointer for
/// [`PcpuState::stacks`].
pub fn make(id: usize, index: usize) -> (&'static mut Vcpu, u64) {
    let place = layout::vcpu(id, vcpu::STATE);
    let stack = place.wrapping_sub(KEPT);
    // SAFETY: [R-STATE] the start-up of the pCPU, which alone uses these pages, and they hold
    // nothing yet.
    unsafe { make_idle(place as *mut Vcpu, index) };
    // SAFETY: [R-STATE] the last words of the thread's stack, which holds nothing yet either.
    unsafe { (stack as *mut u64).write(place) };
    // SAFETY: [R-STATE] the last words of the thread's stack, which holds nothing yet either.
    unsafe { ((stack as *mut u64).wrapping_add(2)).write(start_thread as *const () as u64) };
    // SAFETY: [R-STATE] the one reference, until the thread starts and creates another.
    (unsafe { &mut *(place as *mut Vcpu) }, stack)
}

/// Returns the address of the register frame of a vCPU or an idle thread: that of its state, where
/// its stack starts.
pub fn frame_address(state: &Vcpu) -> u64 {
    if state.slot() == IDLE {
        idle_address(state.index())
    } else {
        layout::vcpu(state.id(), vcpu::STATE)
    }
}

/// Switches from the thread in slot `own` to the thread in `slot`, which takes over the state of
/// the pCPU. Returns when another thread switches to this one.
#[inline(always)]
pub fn switch(pcpu: &'static mut Pcpu, own: usize, slot: usize) -> &'static mut Pcpu {
    let Some(other) = pcpu.stacks().get(slot).copied() else {
        return pcpu;
    };
    let own = own.min(IDLE);
    let place = pcpu.stacks().as_mut_ptr().wrapping_add(own);
    let pcpu: *mut Pcpu = pcpu;
    let mut pcpu = pcpu as u64;
    // The compiler saves what it still needs: all registers are lost here except x19 and x29, which
    // it does not allow as operands.
    // SAFETY: [R-STATE] `other` is the stack of a thread of this pCPU that waits here or has not
    // started; the thread that switches back hands over the one reference again.
    unsafe {
        core::arch::asm!(
            "bl {switch_stack}",
            switch_stack = sym switch_stack,
            inout("x0") pcpu,
            inout("x1") place => _,
            inout("x2") other => _,
            out("x20") _, out("x21") _, out("x22") _, out("x23") _, out("x24") _,
            out("x25") _, out("x26") _, out("x27") _, out("x28") _,
            clobber_abi("C"),
        );
    }
    let pcpu = pcpu as *mut Pcpu;
    // SAFETY: [R-STATE] the thread that switched back has handed over the one reference.
    unsafe { &mut *pcpu }
}

/// Makes the thread of this vCPU rest: nothing on its stack is needed any more except by the code
/// that still runs, which does not use the vCPU.
#[inline(always)]
pub fn discard_stack(vcpu: &mut Vcpu, pcpu: &mut Pcpu) {
    let slot = vcpu.slot();
    let state: *mut Vcpu = vcpu;
    if let Some(place) = pcpu.stacks().get_mut(slot) {
        *place = (state as u64).wrapping_sub(KEPT);
    }
    if let Some(place) = pcpu.resting().get_mut(slot) {
        // SAFETY: [R-STATE] the one reference from here on; the caller passes its own to `rest` or
        // `pass`, which need the address only.
        *place = Some(unsafe { &mut *state });
    }
}

/// Switches to the thread in `slot`, while this thread rests.
#[inline(always)]
pub fn rest(vcpu: &mut Vcpu, pcpu: &'static mut Pcpu, slot: usize) -> ! {
    let other = pcpu.stacks().get(slot).copied().unwrap_or(0);
    let pcpu: *mut Pcpu = pcpu;
    // SAFETY: [R-STATE] both references end here, and `switch.s` hands them on. `other` is a stack
    // as in `switch`.
    unsafe {
        core::arch::asm!(
            "b {rest_thread}",
            rest_thread = sym rest_thread,
            in("x0") core::ptr::from_mut(vcpu),
            in("x1") pcpu,
            in("x2") other,
            options(noreturn),
        )
    }
}

/// Enters the guest of `other`, whose registers have been restored, while this thread rests.
#[inline(always)]
pub fn pass(vcpu: &mut Vcpu, other: &mut Vcpu) -> ! {
    // SAFETY: [R-STATE] both references end here, and `switch.s` hands them on.
    unsafe {
        core::arch::asm!(
            "b {pass_to_guest}",
            pass_to_guest = sym pass_to_guest,
            in("x0") core::ptr::from_mut(vcpu),
            in("x1") core::ptr::from_mut(other),
            options(noreturn),
        )
    }
}

/// Resumes a thread that has rested, from `rested_thread`: its guest runs next.
#[unsafe(no_mangle)]
extern "C" fn vcpu_goes_on(state: *mut Vcpu, pcpu: u64) {
    let pcpu = pcpu as *mut Pcpu;
    // SAFETY: [R-STATE] a thread that rests has no reference to its state.
    let state = unsafe { &mut *state };
    // SAFETY: [R-STATE] the thread that switched to this one has handed over the one reference.
    state.set_pcpu(unsafe { &mut *pcpu });
    upcall::vcpu_resumed(state);
}

/// Starts the thread of a vCPU, from `start_thread`.
#[unsafe(no_mangle)]
extern "C" fn vcpu_main(state: *mut Vcpu, pcpu: u64) -> ! {
    let pcpu = pcpu as *mut Pcpu;
    // SAFETY: [R-STATE] `make` has created the state, and this is the one reference until the
    // vectors create the next.
    let state = unsafe { &mut *state };
    // SAFETY: [R-STATE] the thread that switched to this one has handed over the one reference.
    state.set_pcpu(unsafe { &mut *pcpu });
    upcall::vcpu_thread(state)
}

/// The Rust entry of every pCPU, in its private map; `state` is the address for the state of its
/// idle thread.
#[unsafe(no_mangle)]
extern "C" fn pcpu_main(index: u64, state: u64) -> ! {
    let index = index as usize;
    let (pcpu, place) = (
        layout::private(index, private::PCPU) as *mut Pcpu,
        state as *mut Vcpu,
    );
    // SAFETY: [R-STATE] the pages are mapped, private to this pCPU, and hold nothing yet.
    unsafe { make_pcpu(pcpu, index) };
    // SAFETY: [R-STATE] the pages are mapped, private to this pCPU, and hold nothing yet.
    unsafe { make_idle(place, index) };
    // SAFETY: [R-STATE] this is the one reference: the idle thread never enters a guest.
    let vcpu = unsafe { &mut *place };
    // SAFETY: [R-STATE] this is the one reference; threads hand it on when they switch.
    vcpu.set_pcpu(unsafe { &mut *pcpu });
    upcall::pcpu_thread(vcpu)
}

/// Creates the state that the threads of a pCPU share. A separate function, because the stack has
/// no room for more than one such value.
///
/// # Safety
/// `place` is mapped, and nobody has a reference to it.
#[inline(never)]
unsafe fn make_pcpu(place: *mut Pcpu, index: usize) {
    // SAFETY: [R-STATE] the caller's promise.
    unsafe { place.write(<Pcpu as PcpuState>::new(index)) }
}

/// Creates the state of an idle thread in place, like [`make_pcpu`].
///
/// # Safety
/// The requirements of [`make_pcpu`].
#[inline(never)]
unsafe fn make_idle(place: *mut Vcpu, index: usize) {
    // SAFETY: [R-STATE] the caller's promise.
    unsafe { place.write(<Vcpu as VcpuState>::idle(index)) }
}
