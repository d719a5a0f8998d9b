//! What a pCPU does that has no guest to run: interrupts, reports a line at a time, and waiting for its
//! vCPU to be switched on. No guest waits for it, so its turns need no bound but that each is short.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bulkhead_core::report::ReportLine;

use crate::hw::{boot, cpu, firmware, gic};
use crate::pcpu::Pcpu;
use crate::start::plan;
use crate::{devices, dispatch, lifecycle, mailbox, vm};

/// See the module. Whoever changes what this pCPU looks at sends it a message afterwards, and that ends
/// the wait.
pub fn idle(pcpu: &mut Pcpu) -> ! {
    let mut unsaid: Option<ReportLine> = None;
    loop {
        let busy = poll(pcpu);
        let talking = say(pcpu, &mut unsaid);
        let news = pcpu.report.is_none() && lifecycle::turn(pcpu);
        if vm::all_stopped()
            && let Some(service) = &pcpu.service
            && service.is_done()
        {
            firmware::power_off();
        }
        if !busy && !talking && !news {
            cpu::wait();
        }
    }
}

/// Handles one pending interrupt; `false` if there is none.
pub fn poll(pcpu: &mut Pcpu) -> bool {
    let taken = gic::acknowledge();
    if taken.is_nothing() {
        return false;
    }
    dispatch::handle(pcpu, taken);
    true
}

/// Says the next line of the report, if the stream has room for it. `false` if there is nothing to say
/// or no room: then the drainer's interrupt or kick brings the next turn.
fn say(pcpu: &mut Pcpu, unsaid: &mut Option<ReportLine>) -> bool {
    let (Some(report), Some(vm)) = (&mut pcpu.report, pcpu.vm.map(vm::vm)) else {
        return false;
    };
    let next = match unsaid.take() {
        Some(line) => Some(line),
        // One report at a time, so that its lines stay together.
        None if !lifecycle::may_say(vm, report) || !TURN.get(pcpu.index) => return false,
        None => report.next(&pcpu.stats),
    };
    let Some(line) = next else {
        // Rows of statistics do not name their VM, so no other report begins before they are out. A VM that starts
        // again does not wait for a UART.
        if report.is_brief() || vm.streams.log.is_empty() {
            finish(pcpu, vm);
            return true;
        }
        return wait_for_room(pcpu, vm);
    };
    let fits = vm.streams.log.push_all(line.as_bytes());
    if !fits {
        *unsaid = Some(line);
        return wait_for_room(pcpu, vm);
    }
    devices::output_waits();
    true
}

/// The drainer brings the next turn. `true` on the pCPU that drains, which has its own turns.
fn wait_for_room(pcpu: &Pcpu, vm: &vm::Vm) -> bool {
    vm.streams.wants_room.store(1, Ordering::Release);
    devices::output_waits();
    pcpu.service.is_some()
}

/// Whose turn it is to say a report: index of a pCPU plus one, or 0.
struct Turn(AtomicUsize);

static TURN: Turn = Turn(AtomicUsize::new(0));

impl Turn {
    /// It is, or becomes, the turn of pCPU `own`.
    fn get(&self, own: usize) -> bool {
        let own = own.saturating_add(1);
        match self
            .0
            .compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => true,
            Err(whose) => whose == own,
        }
    }

    /// The turn is over. Wakes the others, who may have been waiting for it.
    fn pass(&self) {
        let own = self.0.swap(0, Ordering::AcqRel).wrapping_sub(1);
        for other in (0..plan().pcpus.len()).filter(|other| *other != own) {
            mailbox::send(other, mailbox::TURN);
        }
    }
}

/// The report is out: perhaps its VM is done, and perhaps all are.
fn finish(pcpu: &mut Pcpu, vm: &vm::Vm) {
    let last = lifecycle::said(pcpu);
    if last {
        // The stream is empty or nearly so, and nobody else writes to it before the turn is passed.
        vm.streams.log.push_all(b"all VMs stopped\r\n");
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
        for byte in b"\r\n[el2] ".iter().chain(line.as_bytes()).chain(b"\r\n") {
            uart.send_polled(*byte);
        }
        uart.flush();
        firmware::power_off();
    }
    cpu::halt()
}
