//! The work of threads without a guest to run. The thread of a vCPU that is off prints reports, a
//! line at a time, and waits for the vCPU to be switched on. The idle thread of a pCPU waits for
//! interrupts. Each step is short.

use bulkhead_abi::console::{ALL_STOPPED_LINE, ServiceTime};
use bulkhead_core::console::text::TextLine;
use bulkhead_core::cpu::life::Work;
use bulkhead_core::cpu::power::Phase;

use crate::console::state::output_waits;
use crate::hw::gic::Taken;
use crate::hw::{firmware, gic, timer, upcall};
use crate::plan::plan;
use crate::profile::IO;
use crate::vcpu::Vcpu;
use crate::vm::{self, REPORT_TURN};
use crate::{deliver, dispatch, gppt, lifecycle, mailbox, prepare, sched, virtio};

/// For so long the console is silent before the board is switched off, as a power of two in a second: who serves devices says
/// what they have done when their VM has stopped. A server gets its next budget in these 31 ms.
const LAST_WORDS: u32 = 5;

/// The thread of a vCPU that is off. Whoever changes state that this thread looks at sends it a
/// message afterwards, which wakes it.
pub fn idle(vcpu: &mut Vcpu) -> ! {
    let mut unsaid: Option<TextLine> = None;
    loop {
        let talking = say(vcpu, &mut unsaid);
        let worked = vcpu.report.is_none() && offline_work(vcpu);
        if !talking && !worked {
            sched::block(vcpu);
        }
        // Also after a wake-up, and repeated while more is pending: otherwise the work of the last
        // interrupt would count into the next step.
        for _ in 0..4 {
            if sched::poll_and_yield(vcpu) {
                break;
            }
        }
    }
}

/// The idle thread of a pCPU, which runs when no vCPU there has anything to do.
#[inline(never)]
pub fn wait(idle: &mut Vcpu) -> ! {
    let mut end = u64::MAX;
    loop {
        let busy = upcall::poll(idle);
        if idle.pcpu.as_deref().is_some_and(|pcpu| pcpu.look_again) {
            sched::reschedule(idle);
            continue;
        }
        if busy {
            continue;
        }
        let done = vm::all_stopped() && idle.console().is_some_and(|service| service.is_done());
        if done {
            let now = timer::now();
            if !IO || now >= end {
                firmware::power_off();
            }
            end = end.min(now.wrapping_add(timer::frequency() >> LAST_WORDS));
            continue;
        }
        if IO {
            end = u64::MAX;
        }
        gic::el2_wait(idle.index, false);
    }
}

/// Does the work that the VM needs from the thread of a vCPU that is off. Returns whether there was
/// any; does not return if the vCPU is to run.
fn offline_work(vcpu: &mut Vcpu) -> bool {
    let (Some(vm), Some(index)) = (vcpu.vm(), vcpu.vm) else {
        return false;
    };
    let gives_reason = vcpu.reason.is_some();
    match vm.life.work(vcpu.number, gives_reason, vcpu.reported) {
        Work::Nothing => {
            // One that has stopped holds no device, and serves none. Only this thread prepares it, so that nobody does meanwhile.
            if IO && vcpu.number == 0 && vm.life.power.phase() == Phase::Down {
                virtio::has_let_go(index);
            }
            return false;
        }
        Work::Report => lifecycle::report(vcpu, index),
        // Service threads tell when they have let go of its memory.
        Work::Prepare if IO && !virtio::has_let_go(index) => return false,
        Work::Prepare => prepare::run(vcpu, index),
        Work::Enter(start) => prepare::run_secondary(vcpu, index, start),
    }
    true
}

/// Leaves the pCPU to others until the paused VM goes on or ends.
pub fn wait_while_paused(vcpu: &mut Vcpu) {
    let Some(vm) = vcpu.vm() else { return };
    while vm.life.power.phase() == Phase::Paused {
        sched::block(vcpu);
        // This loop enters no guest, so EL2's timer interrupts nothing here: a deadline that woke
        // the vCPU and is not served now would wake it for ever.
        deliver::due_of_vcpu(vcpu, timer::now());
    }
}

/// Handles one pending interrupt; `false` if there is none.
pub fn poll(vcpu: &mut Vcpu) -> bool {
    if vcpu.group0 {
        return match gppt::poll_event(vcpu) {
            Some(came) => came,
            None => handle(vcpu, gic::acknowledge_group0()),
        };
    }
    handle(vcpu, gic::acknowledge())
}

fn handle(vcpu: &mut Vcpu, taken: Taken) -> bool {
    if taken.is_nothing() {
        return false;
    }
    dispatch::handle(vcpu, taken);
    true
}

/// Prints the next line of the report, if the stream has room for it. Returns `false` if there is
/// nothing to print or no room. In the latter case the drainer sends a message when there is room
/// again.
fn say(vcpu: &mut Vcpu, unsaid: &mut Option<TextLine>) -> bool {
    let (Some(report), Some(index)) = (&mut vcpu.report, vcpu.vm) else {
        return false;
    };
    let vm = vm::vm(index);
    let next = match unsaid.take() {
        Some(line) => Some(line),
        // One report at a time, so that its lines stay together.
        None if !vm.life.may_print(report.gives_reason()) => return false,
        None if !REPORT_TURN.take(vcpu.id) => return false,
        None => report.next(&vcpu.stats, || match vcpu.vm {
            Some(vm) if IO && vcpu.number == 0 => virtio::service_time(vm),
            _ => ServiceTime::default(),
        }),
    };
    let Some(line) = next else {
        // Rows of statistics do not name their VM, so no other report may begin before they have
        // been sent. A VM that starts again does not wait for a UART.
        if report.is_brief() || vm.streams.log.is_empty() {
            finish(vcpu, index);
            return true;
        }
        return wait_for_space(index, vm, || vm.streams.log.is_empty());
    };
    let fits = vm.streams.log.push_all(line.as_bytes());
    if !fits {
        let len = line.as_bytes().len();
        *unsaid = Some(line);
        return wait_for_space(index, vm, || vm.streams.log.free() as usize >= len);
    }
    output_waits(index);
    true
}

/// Asks the drainer for a message when the stream has room again. `true`: it has it already, as
/// `has_room` says.
fn wait_for_space(index: usize, vm: &vm::Vm, has_room: impl FnOnce() -> bool) -> bool {
    vm.streams.wants_space.want();
    if has_room() {
        vm.streams.wants_space.forget();
        return true;
    }
    output_waits(index);
    false
}

/// Ends a report that has been printed: its VM may be done now, and perhaps all VMs are.
fn finish(vcpu: &mut Vcpu, index: usize) {
    let last = lifecycle::said(vcpu);
    if last {
        // The stream is empty or nearly so, and nobody else writes to it before the turn is passed
        // on.
        vm::vm(index)
            .streams
            .log
            .push_all(ALL_STOPPED_LINE.as_bytes());
    }
    let waiting = REPORT_TURN.pass();
    if last || vm::all_stopped() {
        // Not before: who drains the console switches the board off, and does not as long as somebody has the turn.
        output_waits(index);
    }
    for other in 0..plan().vcpus.len() {
        if waiting.wrapping_shr(other as u32) & 1 != 0 {
            mailbox::send(other, mailbox::TURN);
        }
    }
}
