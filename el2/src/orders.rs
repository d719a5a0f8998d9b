//! Orders about whole VMs: stop, pause, resume, start. An order changes the phase of the VM and
//! tells its vCPUs, whose threads do the rest ([`crate::lifecycle`]); nobody waits.

use core::sync::atomic::Ordering;

use bulkhead_abi::plan::VM_TIME_STOPS;
use bulkhead_core::cpu::power::{End, Phase};

use crate::hw::timer;
use crate::plan::{self, plan};
use crate::{mailbox, vm};

/// The authority to manage other VMs. One value exists, held by the console, whose monitor pauses,
/// stops and starts VMs for the person at the board. So orders come from one pCPU at a time.
#[derive(Debug)]
pub struct ManageVms(());

impl ManageVms {
    /// Creates the authority of the console: once, on the pCPU to which the plan gives the board's
    /// UART.
    pub(super) const fn of_console() -> Self {
        Self(())
    }

    /// Ends a VM.
    pub fn stop(&mut self, index: usize, end: End) {
        stop(index, end);
    }

    /// Pauses a VM that runs, or resumes it.
    pub fn pause(&mut self, index: usize, paused: bool) {
        let vm = vm::vm(index);
        if paused && vm.power.phase() != Phase::Running {
            return;
        }
        if !paused && vm.power.is_paused() {
            let stops = plan()
                .vms
                .get(index)
                .is_some_and(|row| row.flags & VM_TIME_STOPS != 0);
            // A vCPU that has not paused yet has seen time go on.
            let all = vm.paused_vcpus.load(Ordering::Acquire) == vm.power.online();
            vm.time.resume(timer::now(), stops && all);
        }
        if vm.power.pause(paused) {
            notify_vcpus(index);
        }
    }

    /// Starts a VM that is down.
    pub fn start(&mut self, index: usize) {
        let vm = vm::vm(index);
        if vm.power.phase() == Phase::Down {
            vm::one_more();
            vm.power.prepare();
            vm.after.store(vm::after::START, Ordering::Release);
            notify_vcpus(index);
        }
    }
}

/// Ends a VM because its watchdog has expired.
pub fn bite(index: usize) {
    stop(index, End::Watchdog);
}

fn stop(index: usize, end: End) {
    let power = &vm::vm(index).power;
    if power.stop(end) {
        // If the VM starts again, it must not be paused.
        power.pause(false);
        notify_vcpus(index);
    }
}

/// Makes all vCPUs of a VM look at its state.
pub fn notify_vcpus(vm: usize) {
    for id in plan::ids_of(vm) {
        mailbox::send(id, mailbox::POWER);
    }
}
