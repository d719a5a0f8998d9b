//! Orders about whole VMs: stop, pause, resume, start. An order changes the phase of the VM and
//! tells its vCPUs, whose threads do the rest ([`crate::lifecycle`]); nobody waits. An order that
//! does not fit the phase of the VM is refused with that phase.

use core::sync::atomic::Ordering;

use bulkhead_abi::console::Order;
use bulkhead_abi::plan::VM_TIME_STOPS;
use bulkhead_core::control::events::Changed;
use bulkhead_core::cpu::power::{End, Phase};

use crate::hw::claim::Claim;
use crate::hw::timer;
use crate::plan::plan;
use crate::profile::MANAGED;
use crate::vm::VCPU_LOCATION;
use crate::{mailbox, managers, vm};

/// The authority to manage other VMs. The console has it, whose monitor pauses, stops and starts VMs for the person at the board, and
/// in the profile `managed` managers have it, who take turns with the console ([`try_manage`]). So orders come from one pCPU at a time.
#[derive(Debug)]
pub struct ManageVms(());

impl ManageVms {
    /// Creates the authority of the console: once, on the pCPU to which the plan gives the board's
    /// UART.
    pub(super) const fn of_console() -> Self {
        Self(())
    }

    /// Starts a VM that is down; one that is being stopped, or is asked to stop, starts again when it has ended.
    pub fn start(&mut self, index: usize) -> Result<(), Phase> {
        let life = &vm::vm(index).life;
        let told = life.order_start(MANAGED, || vm::start(index))?;
        tell(index, told);
        Ok(())
    }

    /// Carries out an order about a VM.
    pub fn carry_out(&mut self, order: Order, index: usize) -> Result<(), Phase> {
        match order {
            Order::Pause => self.pause(index, true),
            Order::Resume => self.pause(index, false),
            Order::Stop => stop(index, End::Ordered),
            Order::Restart => {
                let told = vm::vm(index).life.order_restart(|| vm::start(index))?;
                tell(index, told);
                Ok(())
            }
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
        changed(index);
        Ok(())
    }
}

/// The authority that managers and the console share.
static MANAGE: Claim<ManageVms> = Claim::new(ManageVms(()));

/// Uses the authority over VMs, if nobody else does at this moment.
pub fn try_manage<R>(act: impl FnOnce(&mut ManageVms) -> R) -> Option<R> {
    MANAGE.try_use(act)
}

/// Ends a VM because its watchdog has expired.
pub fn bite(index: usize) {
    let _refused_if_it_ends = stop(index, End::Watchdog);
}

/// Ends a VM that was asked to stop, and has not in its time.
pub fn overdue(index: usize) {
    let _refused_if_it_ends = stop(index, End::Overdue);
}

fn stop(index: usize, end: End) -> Result<(), Phase> {
    tell(index, vm::vm(index).life.power.stop(end)?);
    Ok(())
}

/// Tells the vCPUs of a VM and its managers that it is in another phase, if that is `news`.
fn tell(index: usize, news: bool) {
    if news {
        notify_vcpus(index);
        changed(index);
    }
}

/// Tells the managers of a VM that it is in another phase now.
#[inline(always)]
pub fn changed(vm: usize) {
    if MANAGED {
        managers::changed(vm, Changed::State);
    }
}

/// Makes the pCPUs of a VM follow its limits, which have changed.
pub fn follow_limits(vm: usize) {
    for id in vm::ids_of(vm) {
        tell_pcpu(id, mailbox::SHARES);
    }
    if MANAGED {
        managers::changed(vm, Changed::Limits);
    }
}

/// Sends a message to the pCPU of a vCPU (row of the plan), whichever of its threads runs.
pub fn tell_pcpu(id: usize, message: u32) {
    mailbox::send(mailbox::of_pcpu(VCPU_LOCATION.of(id)), message);
}

/// Makes all vCPUs of a VM look at its state.
pub fn notify_vcpus(vm: usize) {
    for id in vm::ids_of(vm) {
        mailbox::send(id, mailbox::POWER);
    }
}
