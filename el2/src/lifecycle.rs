//! The end, restart and pause of VMs, and switching their vCPUs on and off.
//! `bulkhead_core::cpu::{power, life}` decide; this module carries out the pCPU's part.
//!
//! To end a VM is to change its phase and send [`mailbox::POWER`] to its vCPUs. The thread of each
//! vCPU takes the vCPU off the hardware. The last vCPU to go off silences the VM's interrupts and
//! devices and settles what follows. Nobody waits for anybody.

use core::sync::atomic::Ordering;

use bulkhead_abi::exit::ExitClass;
use bulkhead_abi::plan::Vm as Row;
use bulkhead_core::console::report::{Reason, Report, Verdict};
use bulkhead_core::cpu::life::{Follows, Printed};
use bulkhead_core::cpu::power::{End, Phase};
use bulkhead_core::devices::deadlines::Purpose;
use bulkhead_core::sched::Policy;
use bulkhead_core::vgic;

use crate::hw::{memory, sysreg as reg, timer, upcall};
use crate::plan::plan;
use crate::profile::{IO, MANAGED, SHARED};
use crate::vcpu::Vcpu;
use crate::vm::{self, Vm};
use crate::{deadlines, mailbox, managers, monitor, orders, sched, timed};

/// Ends the VM at the request of its guest, and takes this vCPU off.
pub fn end(vcpu: &mut Vcpu, end: End) -> ! {
    if let (Some(vm), Some(index)) = (vcpu.vm(), vcpu.vm)
        && vm.life.power.stop(end) == Ok(true)
    {
        orders::notify_vcpus(index);
    }
    leave(vcpu)
}

/// Crashes the VM: its guest cannot go on.
#[inline(never)]
pub fn crash(vcpu: &mut Vcpu, reason: Reason) -> ! {
    if let (Some(vm), Some(index)) = (vcpu.vm(), vcpu.vm)
        && vm.life.crash()
    {
        vcpu.reason = Some(reason);
        if MANAGED {
            let kept = managers::last_crash(index);
            let (life, now) = (vm.life.number(), timer::now());
            kept.keep(life, vcpu.number, &reason, &vcpu.stats, now);
        }
        orders::notify_vcpus(index);
    }
    leave(vcpu)
}

/// Crashes the VM of the vCPU because of an SError; `syndrome` is ESR_EL2 as EL2 took it.
pub fn crash_by_serror(vcpu: &mut Vcpu, syndrome: u64) -> ! {
    let pc = reg::elr();
    let now = reg::cycles();
    vcpu.stats.count(ExitClass::Serror, now, now, pc, syndrome);
    let reason = Reason::Fault {
        syndrome,
        address: 0,
        pc,
        fault: None,
    };
    crash(vcpu, reason)
}

/// Does the exit work before the guest goes on: gives another vCPU its turn, and stops a vCPU whose
/// VM is paused or stopping.
#[inline(never)]
pub fn do_exit_work(vcpu: &mut Vcpu) {
    sched::yield_point(vcpu);
    vcpu.exit_work = false;
    if let Some(vm) = vcpu.vm()
        && vcpu.runs
        && !vcpu.paused
        && (!vm.life.power.is_running() || vcpu.serror != 0)
    {
        hold(vcpu, vm);
    }
}

/// Stops the vCPU because the VM is paused or stopping, or has brought about an SError.
#[inline(never)]
fn hold(vcpu: &mut Vcpu, vm: &Vm) {
    let syndrome = core::mem::take(&mut vcpu.serror);
    if syndrome != 0 {
        crash_by_serror(vcpu, syndrome)
    }
    if vm.life.power.phase() == Phase::Paused {
        pause_vcpu(vcpu, vm);
    }
    if matches!(vm.life.power.phase(), Phase::Stopping(_)) {
        leave(vcpu)
    }
}

/// Pauses the vCPU. Its registers stay where they are; its timers are off meanwhile.
fn pause_vcpu(vcpu: &mut Vcpu, vm: &Vm) {
    vcpu.paused_timers = Some(timer::hold_guest_timer());
    vm.time.pause(timer::now());
    vcpu.paused = true;
    vm.paused_vcpus.fetch_add(1, Ordering::AcqRel);
    upcall::paused(vcpu);
    vm.paused_vcpus.fetch_sub(1, Ordering::AcqRel);
    vcpu.paused = false;
    if let Some(held) = vcpu.paused_timers.take() {
        timer::release_guest_timer(held, vm.time.offset());
    }
    vcpu.context.save_machine();
    timed::look(vcpu);
}

/// Takes the vCPU off and stays in the thread of a vCPU that is off.
#[inline(never)]
pub fn leave(vcpu: &mut Vcpu) -> ! {
    // The switch to this vCPU may have come just before.
    upcall::poll(vcpu);
    take_off(vcpu);
    upcall::idle(vcpu)
}

/// Removes the whole state of the vCPU from the hardware.
pub fn take_off(vcpu: &mut Vcpu) {
    if MANAGED {
        monitor::look_at_registers(vcpu);
    }
    timer::stop_guest_timer();
    deadlines::set(vcpu, Purpose::PhysicalTimer, None);
    if let Some(gppt) = &mut vcpu.gppt {
        gppt.reset(&vcpu.gic);
    }
    vcpu.runs = false;
    vcpu.serror = 0;
    if let (Some(vm), Some(index)) = (vcpu.vm(), vcpu.vm) {
        let whom = vcpu.vgic.leave(&vm.dist, &mut vcpu.gic);
        vm::notify(vm, whom);
        if vm.life.power.leave(vcpu.number) {
            // To silence the VM is a slice of its own. Nothing happens to it before it is settled.
            upcall::poll(vcpu);
            finish(vcpu, vm, index);
        }
    }
}

/// Finishes the end of a VM whose vCPUs are all off.
fn finish(vcpu: &mut Vcpu, vm: &Vm, index: usize) {
    vgic::shutdown(&vm.dist, &mut vcpu.gic);
    for quiet in plan().quiets_of(index) {
        memory::write_register(&mut vcpu.copy_windows, quiet.pa, quiet.width, quiet.value);
    }
    let Some(row) = plan().vms.get(index) else {
        return;
    };
    let Some((settled, leads)) = vm.life.settle(row, timer::now(), timer::seconds(1)) else {
        return;
    };
    if settled.follows == Follows::Tells {
        tell(row, index);
    }
    if leads {
        vcpu.reason = Some(Reason::Ended(settled.end));
    }
    orders::notify_vcpus(index);
    orders::changed(index);
}

/// Tells the VM that the row of a VM names that the VM has crashed.
fn tell(row: &Row, index: usize) {
    let whom = usize::from(row.notify);
    let Some(told) = plan().vms.get(whom) else {
        return;
    };
    let vm = vm::vm(whom);
    vm.events
        .fetch_or(1u64.wrapping_shl(index as u32), Ordering::AcqRel);
    vm::notify(vm, vm.dist.post(u32::from(told.event_intid), 0));
}

/// Gives this vCPU a report to print: with the reason for which the VM has ended, if it is the one
/// to say that, and with its statistics, unless the VM starts again.
pub fn report(vcpu: &mut Vcpu, index: usize) {
    let vms = plan().vms;
    let Some(row) = vms.get(index) else { return };
    let settled = vm::vm(index).life.settled();
    if !settled.is_restart() {
        vcpu.reported = vm::vm(index).life.number();
    }
    let reason = vcpu.reason.take().map(|reason| {
        let told = vms.get(usize::from(row.notify));
        let told = told.map(|vm| vm.name).unwrap_or_default();
        (reason, Verdict::of(settled, row, told))
    });
    // A vCPU that has its pCPU to itself has all of its time.
    let slot = vcpu.slot;
    let usage = vcpu
        .pcpu
        .as_deref_mut()
        .filter(|_| SHARED)
        .and_then(|pcpu| pcpu.sched.usage(slot, timer::now()));
    let time = usage
        .filter(|usage| usage.policy != Policy::Pinned)
        .map(|usage| (usage, timer::frequency()));
    vcpu.report = Some(Report::new(row.name, vcpu.number as u64, reason, time));
}

/// Records that this vCPU's report has been printed. Returns `true` if the VM has now stopped for
/// good and no other VM runs.
pub fn said(vcpu: &mut Vcpu) -> bool {
    let (Some(report), Some(vm)) = (vcpu.report.take(), vcpu.vm()) else {
        return false;
    };
    match vm.life.printed(report.gives_reason(), report.is_brief()) {
        Printed::Nothing => {}
        Printed::Work => {
            for id in vcpu.vm.into_iter().flat_map(vm::ids_of) {
                mailbox::send(id, mailbox::TURN);
            }
        }
        Printed::Down => {
            if let Some(index) = vcpu.vm {
                orders::changed(index);
            }
            if let Some(boot) = vcpu.vm.filter(|_| IO).and_then(|vm| vm::id_of(vm, 0)) {
                mailbox::send(boot, mailbox::POWER);
            }
            return vcpu.vm.is_some_and(vm::one_less);
        }
    }
    false
}
