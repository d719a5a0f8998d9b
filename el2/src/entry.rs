//! The functions by which the assembly and `hw` call the rest of EL2; `hw` knows them by their
//! symbols. `vcpu` is always the one reference to the state of the vCPU that runs ([R-STATE]).
#![allow(unsafe_code)]

use bulkhead_core::console::text::TextLine;
#[cfg(feature = "managed")]
use bulkhead_core::vgic::Notify;

use crate::hw::gic::Taken;
use crate::hw::state::{El2, States};
use crate::hw::{boot, fault, upcall};
use crate::pcpu::Pcpu;
use crate::profile::IO;
use crate::vcpu::Vcpu;
use crate::vm::Vm;
use crate::{deliver, dispatch, idle, lifecycle, sched, service, start, virtio};

impl States for El2 {
    type Vm = Vm;
    type Virtio = virtio::Shared;
    type Vcpu = Vcpu;
    type Pcpu = Pcpu;
}

/// The entry of the boot pCPU, from `boot.s`.
#[unsafe(no_mangle)]
extern "C" fn primary(tree: u64, load: u64) -> ! {
    start::primary(tree, load)
}

/// The entry of every pCPU in its private map: creates its vCPUs, and becomes its idle thread.
#[unsafe(no_mangle)]
extern "C" fn el2_pcpu(idle: &mut Vcpu) -> ! {
    start::pcpu(idle);
    boot::has_started();
    sched::leave_idle(idle);
    idle::wait(idle)
}

/// The thread of a vCPU, from its first turn. The boot vCPU of a VM finds that it has to prepare the
/// VM, the others wait to be switched on.
#[unsafe(no_mangle)]
extern "C" fn el2_vcpu(vcpu: &mut Vcpu) -> ! {
    sched::begin(vcpu);
    if IO && let Some(index) = vcpu.service {
        el2_service(vcpu, index)
    }
    upcall::idle(vcpu)
}

/// The loop of a service thread. A separate symbol for measurements, like [`el2_idle`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn el2_service(vcpu: &mut Vcpu, index: usize) -> ! {
    service::run(vcpu, index)
}

/// Resumes the thread of a vCPU that has rested; its guest runs next.
#[unsafe(no_mangle)]
extern "C" fn el2_resumed(vcpu: &mut Vcpu) {
    sched::go_on(vcpu);
    if vcpu.exit_work {
        lifecycle::do_exit_work(vcpu);
    }
}

/// Delivers the messages to this vCPU and its pCPU.
#[unsafe(no_mangle)]
extern "C" fn el2_mail(vcpu: &mut Vcpu) {
    deliver::mail(vcpu);
}

/// The loop of the thread of a vCPU that is off. A separate symbol for measurements: time spent
/// here delays no guest of that vCPU.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn el2_idle(vcpu: &mut Vcpu) -> ! {
    idle::idle(vcpu)
}

/// Handles one pending interrupt between two slices of long work; `false` if there is none. A
/// separate symbol for measurements: no slice is longer than the time between two calls.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn el2_poll(vcpu: &mut Vcpu) -> bool {
    idle::poll(vcpu)
}

/// Waits in the thread of a vCPU whose VM is paused. A separate symbol for measurements: time spent
/// here delays no guest of that vCPU.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn el2_paused(vcpu: &mut Vcpu) {
    idle::wait_while_paused(vcpu);
}

/// Handles a synchronous exit, from the vectors: `vcpu` is the one reference to the state of the
/// vCPU that runs.
#[unsafe(no_mangle)]
extern "C" fn sync_exit(vcpu: &mut Vcpu, esr: u64, class: u64) {
    dispatch::synchronous(vcpu, esr, class);
}

/// Handles a data abort of the guest, from the vectors like `sync_exit`.
#[unsafe(no_mangle)]
extern "C" fn data_exit(vcpu: &mut Vcpu, esr: u64) {
    dispatch::data_abort(vcpu, esr);
}

/// Handles a trapped system register access, from the vectors like `sync_exit`.
#[unsafe(no_mangle)]
extern "C" fn sysreg_exit(vcpu: &mut Vcpu, esr: u64) {
    dispatch::system_register(vcpu, esr);
}

/// Handles an IRQ, from the vectors like `sync_exit`.
#[unsafe(no_mangle)]
extern "C" fn irq_exit(vcpu: &mut Vcpu) {
    dispatch::interrupt(vcpu);
}

/// Handles an interrupt off the fast path, from `upcall::handle_rare_interrupt`, like `sync_exit`.
#[unsafe(no_mangle)]
extern "C" fn rare_interrupt_exit(vcpu: &mut Vcpu, begin: u64, taken: Taken) {
    dispatch::rare_interrupt(vcpu, begin, taken);
}

/// Handles a synchronous exit off the fast path, from `upcall::handle_rare_synchronous`, like `sync_exit`.
#[cfg(feature = "managed")]
#[unsafe(no_mangle)]
extern "C" fn rare_synchronous_exit(vcpu: &mut Vcpu, esr: u64, begin: u64, pc: u64) {
    dispatch::other_synchronous(vcpu, esr, begin, pc);
}

/// Handles the end of an SGI to a sibling on this pCPU, from `upcall::handle_rare_beside`, like `sync_exit`.
#[cfg(feature = "managed")]
#[unsafe(no_mangle)]
extern "C" fn rare_beside_exit(vcpu: &mut Vcpu, whom: u64, esr: u64, begin: u64, pc: u64) {
    dispatch::notify_beside(vcpu, Notify(whom as _), esr, begin, pc);
}

/// Handles a FIQ, from the vectors like `sync_exit`.
#[unsafe(no_mangle)]
extern "C" fn fiq_exit(vcpu: &mut Vcpu) {
    dispatch::fast_interrupt(vcpu);
}

/// Handles an SError, from the vectors like `sync_exit`.
#[unsafe(no_mangle)]
extern "C" fn serror_exit(vcpu: &mut Vcpu) {
    dispatch::serror(vcpu);
}

/// Reports an exception taken from EL2 itself, which is a bug of EL2, and stops this pCPU.
#[unsafe(no_mangle)]
extern "C" fn el2_exception(kind: u64, esr: u64, elr: u64, far: u64) -> ! {
    let mut line = TextLine::new();
    line.text("bug in EL2: exception ")
        .decimal(kind)
        .text(" pc=")
        .hex(elr);
    line.text(" syndrome=").hex(esr).text(" address=").hex(far);
    fault::el2_fault(&line)
}

/// Reports a panic. Only start-up can reach one, which the gates prove.
#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    let mut line = TextLine::new();
    line.text("bug in EL2: panic");
    if let Some(place) = info.location() {
        line.text(" at ")
            .text(place.file())
            .byte(b':')
            .decimal(u64::from(place.line()));
    }
    fault::el2_fault(&line)
}
