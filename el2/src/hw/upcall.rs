//! Calls to the modules above `hw`, by the symbols that `entry.rs` defines: `hw` imports nothing
//! from those modules, and measurements tell by the symbols what a thread of EL2 does.

#[cfg(feature = "managed")]
use bulkhead_core::vgic::Notify;

use super::gic::Taken;
use super::state::Vcpu;

#[expect(improper_ctypes, reason = "both sides are Rust, of one build")]
unsafe extern "C" {
    fn el2_pcpu(idle: &mut Vcpu) -> !;
    fn el2_vcpu(vcpu: &mut Vcpu) -> !;
    fn el2_resumed(vcpu: &mut Vcpu);
    fn el2_idle(vcpu: &mut Vcpu) -> !;
    fn el2_paused(vcpu: &mut Vcpu);
    fn el2_poll(vcpu: &mut Vcpu) -> bool;
    fn el2_mail(vcpu: &mut Vcpu);
}

unsafe extern "C" {
    fn rare_interrupt(state: *mut u8, begin: u64, taken: Taken);
}

/// Runs the idle thread of a pCPU, from its start.
pub(super) fn pcpu_thread(idle: &mut Vcpu) -> ! {
    // SAFETY: [R-ENTRY] a safe function of this signature.
    unsafe { el2_pcpu(idle) }
}

/// Runs the thread of a vCPU, from its first turn.
pub(super) fn vcpu_thread(vcpu: &mut Vcpu) -> ! {
    // SAFETY: [R-ENTRY] a safe function of this signature.
    unsafe { el2_vcpu(vcpu) }
}

/// Resumes the thread of a vCPU that has rested, on its way back to the guest.
#[inline(always)]
pub(super) fn vcpu_resumed(vcpu: &mut Vcpu) {
    // SAFETY: [R-ENTRY] a safe function of this signature.
    unsafe { el2_resumed(vcpu) }
}

/// Runs the thread of a vCPU that is off.
#[inline(always)]
pub fn idle(vcpu: &mut Vcpu) -> ! {
    // SAFETY: [R-ENTRY] a safe function of this signature.
    unsafe { el2_idle(vcpu) }
}

/// Waits in the thread of a vCPU whose VM is paused, until the VM goes on or ends.
#[inline(always)]
pub fn paused(vcpu: &mut Vcpu) {
    // SAFETY: [R-ENTRY] a safe function of this signature.
    unsafe { el2_paused(vcpu) }
}

/// Handles one pending interrupt; `false` if there is none.
#[inline(always)]
pub fn poll(vcpu: &mut Vcpu) -> bool {
    // SAFETY: [R-ENTRY] a safe function of this signature.
    unsafe { el2_poll(vcpu) }
}

/// Delivers the messages to this vCPU and its pCPU.
#[inline(always)]
pub fn deliver_mail(vcpu: &mut Vcpu) {
    // SAFETY: [R-ENTRY] a safe function of this signature.
    unsafe { el2_mail(vcpu) }
}

#[cfg(feature = "managed")]
unsafe extern "C" {
    fn rare_synchronous(state: *mut u8, esr: u64, begin: u64, pc: u64);
    fn rare_beside(state: *mut u8, whom: u64, esr: u64, begin: u64, pc: u64);
}

/// Handles a synchronous exit off the fast path, by way of `rare.s`.
#[cfg(feature = "managed")]
#[inline(always)]
pub fn handle_rare_synchronous(vcpu: &mut Vcpu, esr: u64, begin: u64, pc: u64) {
    let state = core::ptr::from_mut(vcpu).cast();
    // SAFETY: [R-STATE] it stores registers in the frame, at the start of the state, and calls
    // `rare_synchronous_exit` with this reference.
    unsafe { rare_synchronous(state, esr, begin, pc) }
}

/// Handles the end of an SGI to a sibling on this pCPU, by way of `rare.s`.
#[cfg(feature = "managed")]
#[inline(always)]
pub fn handle_rare_beside(vcpu: &mut Vcpu, whom: Notify, esr: u64, begin: u64, pc: u64) {
    let state = core::ptr::from_mut(vcpu).cast();
    // SAFETY: [R-STATE] it stores registers in the frame, at the start of the state, and calls
    // `rare_beside_exit` with this reference.
    unsafe { rare_beside(state, whom.0.into(), esr, begin, pc) }
}

/// Handles an interrupt off the fast path, by way of the vectors.
#[inline(always)]
pub fn handle_rare_interrupt(vcpu: &mut Vcpu, begin: u64, taken: Taken) {
    let state = core::ptr::from_mut(vcpu).cast();
    // SAFETY: [R-STATE] it stores registers in the frame, at the start of the state, and calls
    // `rare_interrupt_exit` with this reference.
    unsafe { rare_interrupt(state, begin, taken) }
}
