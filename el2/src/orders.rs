//! Orders about whole VMs: stop, pause, resume, start. An order changes the phase of the VM and
//! tells its vCPUs, whose threads do the rest ([`crate::lifecycle`]); nobody waits. An order that
//! does not fit the phase of the VM is refused with that phase.

use core::sync::atomic::Ordering;

use bulkhead_abi::console::Order;
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

    /// Carries out an order about a VM.
    pub fn carry_out(&mut self, order: Order, index: usize) -> Result<(), Phase> {
        match order {
            Order::Pause => self.pause(index, true),
            Order::Resume => self.pause(index, false),
            Order::Stop => stop(index, End::Ordered),
            Order::Restart => match stop(index, End::OrderedRestart) {
                Err(Phase::Down) => {
                    vm::start(index)?;
                    notify_vcpus(index);
                    Ok(())
                }
                done => done,
            },
        }
    }

    /// Pauses a VM that runs, or resumes it.
    fn pause(&mut self, index: usize, paused: bool) -> Result<(), Phase> {
        let vm = vm::vm(index);
        let power = &vm.life.power;
        if !paused && power.phase() == Phase::Paused {
            let stops = plan()
                .vms
                .get(index)
                .is_some_and(|row| row.flags & VM_TIME_STOPS != 0);
            // A vCPU that has not paused yet has seen time go on.
            let all = vm.paused_vcpus.load(Ordering::Acquire) == power.online();
            vm.time.resume(timer::now(), stops && all);
        }
        power.pause(paused)?;
        notify_vcpus(index);
        Ok(())
    }
}

/// Ends a VM because its watchdog has expired.
pub fn bite(index: usize) {
    let _refused_if_it_ends = stop(index, End::Watchdog);
}

fn stop(index: usize, end: End) -> Result<(), Phase> {
    if vm::vm(index).life.power.stop(end)? {
        notify_vcpus(index);
    }
    Ok(())
}

/// Makes all vCPUs of a VM look at its state.
pub fn notify_vcpus(vm: usize) {
    for id in plan::ids_of(vm) {
        mailbox::send(id, mailbox::POWER);
    }
}
