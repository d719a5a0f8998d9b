//! Threads of EL2: each vCPU has one, with a stack of its own, on the pCPU where the vCPU runs; and each pCPU has one that waits.
//! A thread goes on until it leaves the pCPU to another.

use super::boot::{idle_address, make_idle};
use super::layout::{self, vcpu};
use crate::pcpu::{IDLE, Pcpu};
use crate::vcpu::Vcpu;

core::arch::global_asm!(include_str!("switch.s"));

unsafe extern "C" {
    fn switch_stack();
    fn start_thread();
}

/// What [`switch_stack`] takes from a stack: x19, x29, x30.
const KEPT: u64 = 4 * 8;

/// Makes the state of vCPU `id` (row of the plan), as that of an idle thread of pCPU `index`, and its thread; with it what
/// [`Pcpu::stacks`] has of it.
pub fn make(id: usize, index: usize) -> (&'static mut Vcpu, u64) {
    let place = layout::vcpu(id, vcpu::STATE);
    let stack = place.wrapping_sub(KEPT);
    // SAFETY: [R-STATE] start-up of its pCPU, which alone uses these pages, and nothing is there yet.
    unsafe { make_idle(place as *mut Vcpu, index) };
    // SAFETY: [R-STATE] the last words of its stack, which is as empty.
    unsafe { (stack as *mut u64).write(place) };
    // SAFETY: [R-STATE] as above.
    unsafe { ((stack as *mut u64).wrapping_add(2)).write(start_thread as *const () as u64) };
    // SAFETY: [R-STATE] the one reference, until the thread starts and makes its own.
    (unsafe { &mut *(place as *mut Vcpu) }, stack)
}

/// Address of the register frame of a vCPU, or of the thread that waits: that of its state, where its stack starts.
pub fn frame_address(state: &Vcpu) -> u64 {
    if state.slot == IDLE {
        idle_address(state.index)
    } else {
        layout::vcpu(state.id, vcpu::STATE)
    }
}

/// Leaves the pCPU, from the thread in slot `own` to that in `slot`, with what they share. Returns when another thread leaves
/// it to this one.
#[inline(always)]
pub fn switch(home: &'static mut Pcpu, own: usize, slot: usize) -> &'static mut Pcpu {
    let Some(other) = home.stacks.get(slot).copied() else {
        return home;
    };
    let home: *mut Pcpu = home;
    let own = own.min(IDLE);
    // SAFETY: [R-STATE] this is the one reference to what the threads share, and it has it no more.
    let place = unsafe { (&raw mut (*home).stacks).cast::<u64>().wrapping_add(own) };
    let mut home = home as u64;
    // The compiler keeps what it still needs, since all registers are lost here but two that it does not let go: x19 and x29.
    // SAFETY: [R-STATE] `other` is the stack of a thread of this pCPU that waits in here or has not started; whoever
    // comes back hands over the one reference again.
    unsafe {
        core::arch::asm!(
            "bl {switch_stack}",
            switch_stack = sym switch_stack,
            inout("x0") home,
            inout("x1") place => _,
            inout("x2") other => _,
            out("x20") _, out("x21") _, out("x22") _, out("x23") _, out("x24") _,
            out("x25") _, out("x26") _, out("x27") _, out("x28") _,
            clobber_abi("C"),
        );
    }
    let home = home as *mut Pcpu;
    // SAFETY: [R-STATE] as above.
    unsafe { &mut *home }
}

/// Where the thread of a vCPU starts, from `start_thread`.
#[unsafe(no_mangle)]
extern "C" fn vcpu_main(state: *mut Vcpu, home: u64) -> ! {
    let home = home as *mut Pcpu;
    // SAFETY: [R-STATE] `make` has put the state there, and this is the one reference until the vectors make the next.
    let state = unsafe { &mut *state };
    // SAFETY: [R-STATE] the thread that switched to this one has handed over the one reference.
    state.home = Some(unsafe { &mut *home });
    crate::start::vcpu(state)
}
