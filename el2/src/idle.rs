//! What threads do that have no guest to run. That of a vCPU that is off: reports a line at a time, and waiting for it to
//! be switched on. That of a pCPU without anything to do: waiting for interrupts. Each step is short.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bulkhead_abi::console::{ALL_STOPPED_LINE, label};
use bulkhead_abi::plan::MAX_VCPUS;
use bulkhead_core::report::ReportLine;

use crate::hw::{boot, cpu, firmware, gic};
use crate::start::plan;
use crate::vcpu::Vcpu;
use crate::{devices, dispatch, lifecycle, mailbox, own, sched, vm};

/// The thread of a vCPU that is off. Whoever changes what it looks at sends it a message afterwards, and that wakes it.
pub fn idle(vcpu: &mut Vcpu) -> ! {
    let mut unsaid: Option<ReportLine> = None;
    loop {
        let talking = say(vcpu, &mut unsaid);
        let news = vcpu.report.is_none() && lifecycle::turn(vcpu);
        if !talking && !news {
            sched::block(vcpu);
        }
        // Also when it has been woken, and again while there is more: what was done last is no part of the next step.
        for _ in 0..4 {
            if attend(vcpu) {
                break;
            }
        }
    }
}

/// The thread that waits on a pCPU when no vCPU has anything to do there.
pub fn wait(idle: &mut Vcpu) -> ! {
    loop {
        let busy = boot::el2_poll(idle);
        if idle.home.as_deref().is_some_and(|home| home.look_again) {
            sched::reschedule(idle);
            continue;
        }
        if busy {
            continue;
        }
        if vm::all_stopped() && devices::service_of(idle).is_some_and(|service| service.is_done()) {
            firmware::power_off();
        }
        boot::el2_wait(idle.index);
    }
}

/// Between two slices of long work: does what other pCPUs and the console ask of this one, and lets others have their turns.
/// `false`: they may ask for more.
pub fn attend(vcpu: &mut Vcpu) -> bool {
    // As many as there can be sources; more can wait for the next slice.
    let mut quiet = false;
    for _ in 0..8 {
        quiet = !boot::el2_poll(vcpu);
        if quiet {
            break;
        }
    }
    sched::breathe(vcpu);
    quiet
}

/// Handles one pending interrupt; `false` if there is none.
pub fn poll(vcpu: &mut Vcpu) -> bool {
    if vcpu.group0 {
        return own::poll(vcpu);
    }
    let taken = gic::acknowledge();
    if taken.is_nothing() {
        return false;
    }
    dispatch::handle(vcpu, taken);
    true
}

/// Says the next line of the report, if the stream has room for it. `false` if there is nothing to say
/// or no room: then the drainer's interrupt or kick brings the next turn.
fn say(vcpu: &mut Vcpu, unsaid: &mut Option<ReportLine>) -> bool {
    let (Some(report), Some(vm)) = (&mut vcpu.report, vcpu.vm.map(vm::vm)) else {
        return false;
    };
    let next = match unsaid.take() {
        Some(line) => Some(line),
        // One report at a time, so that its lines stay together.
        None if !lifecycle::may_say(vm, report) => return false,
        None if !TURN.get(vcpu.id) => return false,
        None => report.next(&vcpu.stats),
    };
    let Some(line) = next else {
        // Rows of statistics do not name their VM, so no other report begins before they are out. A VM that starts
        // again does not wait for a UART.
        if report.is_brief() || vm.streams.log.is_empty() {
            finish(vcpu, vm);
            return true;
        }
        return wait_for_room(vm);
    };
    let fits = vm.streams.log.push_all(line.as_bytes());
    if !fits {
        *unsaid = Some(line);
        return wait_for_room(vm);
    }
    devices::output_waits();
    true
}

/// The drainer brings the next turn.
fn wait_for_room(vm: &vm::Vm) -> bool {
    vm.streams.wants_room.store(1, Ordering::Release);
    devices::output_waits();
    false
}

/// Whose turn it is to say a report: row of a vCPU plus one, or 0; and who waits for it, a bit for each row.
struct Turn {
    whose: AtomicUsize,
    waiting: AtomicU64,
}

static TURN: Turn = Turn {
    whose: AtomicUsize::new(0),
    waiting: AtomicU64::new(0),
};
const _: () = assert!(MAX_VCPUS <= u64::BITS as usize);

impl Turn {
    /// It is, or becomes, the turn of vCPU `own`; or it is told when it may ask again.
    fn get(&self, own: usize) -> bool {
        let mark = 1u64.wrapping_shl(own as u32);
        // Before the look: who passes the turn on looks at it afterwards.
        self.waiting.fetch_or(mark, Ordering::SeqCst);
        let own = own.saturating_add(1);
        let found = self
            .whose
            .compare_exchange(0, own, Ordering::SeqCst, Ordering::SeqCst);
        let mine = found.is_ok() || found == Err(own);
        if mine {
            self.waiting.fetch_and(!mark, Ordering::SeqCst);
        }
        mine
    }

    /// The turn is over. Wakes the others that wait for it.
    fn pass(&self) {
        self.whose.store(0, Ordering::SeqCst);
        let waiting = self.waiting.swap(0, Ordering::SeqCst);
        for other in 0..plan().vcpus.len() {
            if waiting.wrapping_shr(other as u32) & 1 != 0 {
                mailbox::send(other, mailbox::TURN);
            }
        }
    }
}

/// The report is out: perhaps its VM is done, and perhaps all are.
fn finish(vcpu: &mut Vcpu, vm: &vm::Vm) {
    let last = lifecycle::said(vcpu);
    if last {
        // The stream is empty or nearly so, and nobody else writes to it before the turn is passed.
        vm.streams.log.push_all(ALL_STOPPED_LINE.as_bytes());
        devices::output_waits();
    }
    TURN.pass();
}

/// EL2's last words about itself. During start-up the boot map has the UART at hand; later only the
/// pCPU that drains the console has it, and the others can only stop.
pub fn own_fault(line: &bulkhead_core::text::Line<192>) -> ! {
    // Without firmware that can switch the board off, asking it is the next exception: once is enough.
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed)
        && let Some(uart) = boot::uart_at_hand()
    {
        for byte in label::EL2_ANEW
            .as_bytes()
            .iter()
            .chain(line.as_bytes())
            .chain(b"\r\n")
        {
            uart.send_polled(*byte);
        }
        uart.flush();
        firmware::power_off();
    }
    cpu::halt()
}
