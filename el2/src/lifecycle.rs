//! How VMs end, start again and pause, and how their vCPUs go on and off.
//! `bulkhead_core::cpu::power` decides; this module carries out the pCPU's part.
//!
//! Whoever ends a VM changes its phase and sends [`mailbox::POWER`] to its vCPUs. The thread of
//! each vCPU takes the vCPU off the hardware. The last vCPU to go off silences the VM's interrupts
//! and devices and does what the crash policy says. Nobody waits for anybody.

use core::sync::atomic::Ordering;

use bulkhead_abi::exit::ExitClass;
use bulkhead_abi::plan::{Crash, NONE};
use bulkhead_core::console::report::{Reason, Report, Verdict};
use bulkhead_core::cpu::power::{End, Phase};
use bulkhead_core::devices::deadlines::Purpose;
use bulkhead_core::sched::Policy;
use bulkhead_core::vgic;

use crate::hw::{memory, sysreg as reg, timer, upcall};
use crate::plan::{self, plan};
use crate::vcpu::Vcpu;
use crate::vm::{self, Vm, after};
use crate::{deadlines, mailbox, orders, sched, timed};

/// Ends the VM at the request of its guest, and takes this vCPU off.
pub fn end(vcpu: &mut Vcpu, end: End) -> ! {
    if let (Some(vm), Some(index)) = (vcpu.vm(), vcpu.vm)
        && vm.power.stop(end)
    {
        orders::notify_vcpus(index);
    }
    leave(vcpu)
}

/// Crashes the VM: its guest cannot go on.
#[inline(never)]
pub fn crash(vcpu: &mut Vcpu, reason: Reason) -> ! {
    if let (Some(vm), Some(index)) = (vcpu.vm(), vcpu.vm)
        && vm.power.stop(End::Crash)
    {
        let verdict = judge(vm, index, End::Crash);
        lead(vcpu, index, reason, verdict);
        if verdict.is_restart() {
            vm.after.fetch_or(after::RETRY, Ordering::AcqRel);
        }
        orders::notify_vcpus(index);
    }
    leave(vcpu)
}

/// Crashes the VM of the vCPU because of an SError; `esr` is the syndrome as EL2 took it.
pub fn crash_by_serror(vcpu: &mut Vcpu, esr: u64) -> ! {
    let pc = reg::elr();
    // EC 0x2f: SError.
    let syndrome = 0x2f << 26 | esr & 0x1ff_ffff;
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
#[inline(always)]
pub fn do_exit_work(vcpu: &mut Vcpu) {
    sched::yield_point(vcpu);
    vcpu.exit_work = false;
    if let Some(vm) = vcpu.vm()
        && vcpu.runs
        && !vcpu.paused
        && (vm.power.is_paused()
            || matches!(vm.power.phase(), Phase::Stopping(_))
            || vcpu.serror != 0)
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
    if matches!(vm.power.phase(), Phase::Stopping(_)) {
        leave(vcpu)
    }
    if vm.power.is_paused() {
        pause_vcpu(vcpu, vm);
        if matches!(vm.power.phase(), Phase::Stopping(_)) {
            leave(vcpu)
        }
    }
}

/// Pauses the vCPU. Its registers stay where they are; its timers are off meanwhile.
fn pause_vcpu(vcpu: &mut Vcpu, vm: &Vm) {
    let held = timer::hold_guest_timer();
    vm.time.pause(timer::now());
    vcpu.paused_timers = Some(held);
    vcpu.paused = true;
    vm.paused_vcpus.fetch_add(1, Ordering::AcqRel);
    upcall::paused(vcpu);
    vm.paused_vcpus.fetch_sub(1, Ordering::AcqRel);
    vcpu.paused = false;
    vcpu.paused_timers = None;
    timer::release_guest_timer(held, vm.time.offset());
    vcpu.context.save_machine();
    timed::look(vcpu);
}

/// Takes the vCPU off and stays in the thread of a vCPU that is off.
#[inline(never)]
pub fn leave(vcpu: &mut Vcpu) -> ! {
    take_off(vcpu);
    upcall::idle(vcpu)
}

/// Removes the whole state of the vCPU from the hardware.
pub fn take_off(vcpu: &mut Vcpu) {
    timer::stop_guest_timer();
    deadlines::set(vcpu, Purpose::PhysicalTimer, None);
    vcpu.gic.disable(vcpu.vtimer_intid);
    if vcpu.has_ptimer {
        vcpu.gic.disable(plan().header.board.ptimer_intid);
    }
    if let Some(gppt) = &mut vcpu.gppt {
        gppt.reset(&vcpu.gic);
    }
    vcpu.runs = false;
    vcpu.exit_work = false;
    vcpu.serror = 0;
    if let (Some(vm), Some(index)) = (vcpu.vm(), vcpu.vm) {
        let whom = vcpu.vgic.leave(&vm.dist, &mut vcpu.gic);
        vm::notify(index, whom);
        if vm.power.leave(vcpu.number) {
            finish(vcpu, vm, index);
        }
    }
}

/// Finishes the end of a VM whose vCPUs are all off.
fn finish(vcpu: &mut Vcpu, vm: &Vm, index: usize) {
    vgic::shutdown(&vm.dist, &mut vcpu.gic);
    for quiet in plan().quiets_of(index) {
        memory::write_register(&mut vcpu.windows, quiet.pa, quiet.width, quiet.value);
    }
    let Phase::Stopping(end) = vm.power.phase() else {
        return;
    };
    let restarts = if end == End::Crash {
        vm.after.load(Ordering::Acquire) & after::RETRY != 0
    } else {
        let verdict = judge(vm, index, end);
        lead(vcpu, index, Reason::Ended(end), verdict);
        verdict.is_restart()
    };
    if restarts {
        vm.power.prepare();
    }
    vm.after.fetch_or(
        if restarts {
            after::START
        } else {
            after::REPORT
        },
        Ordering::AcqRel,
    );
    orders::notify_vcpus(index);
}

/// Makes the report of this vCPU the one that says why the VM ended.
fn lead(vcpu: &mut Vcpu, index: usize, reason: Reason, verdict: Verdict) {
    let name = plan().vms.get(index).map_or([0; 16], |vm| vm.name);
    let report = Report::new(name, vcpu.number as u64, reason, verdict);
    vcpu.report = Some(with_time(vcpu, report));
    if !verdict.is_restart() {
        vcpu.reported = vm::vm(index).life();
    }
}

/// Adds to a report the CPU time that the vCPU has used, unless the vCPU has its pCPU to itself.
pub fn with_time(vcpu: &mut Vcpu, report: Report) -> Report {
    let slot = vcpu.slot;
    let pcpu = vcpu.pcpu.as_deref_mut();
    match pcpu.and_then(|pcpu| pcpu.sched.usage(slot, timer::now())) {
        Some(usage) if usage.policy != Policy::Pinned => {
            report.with_time(usage, timer::frequency())
        }
        _ => report,
    }
}

/// Returns the verdict on the end of a VM, by its crash policy.
fn judge(vm: &Vm, index: usize, end: End) -> Verdict {
    vm.last_end.store(end as u32, Ordering::Relaxed);
    let Some(row) = plan().vms.get(index) else {
        return Verdict::Stays;
    };
    if end.is_restart() {
        return Verdict::Restarts;
    }
    if !end.is_crash() {
        return Verdict::Stays;
    }
    if row.crash == Crash::Restart as u16 {
        let (limit, seconds) = (row.restarts, row.restart_seconds);
        let period = timer::seconds(u64::from(seconds));
        return match vm.restarts.another(timer::now(), period, limit) {
            Some(count) => Verdict::Retries {
                count,
                limit,
                seconds,
            },
            None => Verdict::Exhausted { limit, seconds },
        };
    }
    if row.crash == Crash::Notify as u16
        && row.notify != NONE
        && let Some(whom) = plan().vms.get(usize::from(row.notify))
    {
        let told = vm::vm(usize::from(row.notify));
        let bit = 1u64.wrapping_shl(index as u32);
        told.events.fetch_or(bit, Ordering::AcqRel);
        let interrupt = told.dist.post(u32::from(whom.event_intid), 0);
        vm::notify(usize::from(row.notify), interrupt);
        return Verdict::Tells(whom.name);
    }
    Verdict::Stays
}

/// Records that this vCPU's report has been printed. Returns `true` if the VM has now stopped for
/// good and no other VM runs.
pub fn said(vcpu: &mut Vcpu) -> bool {
    let (Some(report), Some(vm)) = (vcpu.report.take(), vcpu.vm()) else {
        return false;
    };
    if report.leads() {
        vm.after.fetch_or(after::REPORTED, Ordering::AcqRel);
        for id in vcpu.vm.into_iter().flat_map(plan::ids_of) {
            mailbox::send(id, mailbox::TURN);
        }
    }
    if report.is_brief() || vm.unsaid.fetch_sub(1, Ordering::AcqRel) != 1 {
        return false;
    }
    vm.power.down();
    vm::one_less()
}

/// Whether this vCPU may print its report now: the report that says why the VM ended comes first.
pub fn may_say(vm: &Vm, report: &Report) -> bool {
    report.leads() || vm.after.load(Ordering::Acquire) & after::REPORTED != 0
}

/// Begins a new life of the VM, about whose end nothing has been reported.
pub fn begin(vm: &Vm, vcpus: usize) {
    vm.power.prepare();
    vm.after.store(0, Ordering::Release);
    vm.unsaid.store(vcpus as u32, Ordering::Release);
    vm.next_life();
}
