//! The control port of managers ([ADR 27](../../docs/adr/0027-control.md)): `bulkhead_core::control` decides, this module does it, in the service
//! thread that serves the consoles.

use core::sync::atomic::Ordering;

use bulkhead_abi::console::Order as Ordered;
use bulkhead_abi::plan::{MAX_MANAGERS, VIRTIO_NO_CONSOLE, Vcpu as VcpuRow};
use bulkhead_core::console::backlog::Found;
use bulkhead_core::console::cpu_time::nanoseconds;
use bulkhead_core::control::{Board, Denied, LastCrash, Order, Session, VmState};
use bulkhead_core::cpu::power;
use bulkhead_core::monitor::{Published, Request};
use bulkhead_core::plan::Plan;
use bulkhead_core::sched::Change;
use bulkhead_core::virtio::device::Outcome;
use bulkhead_core::virtio::guest_ring::{Broken, GuestRing};
use bulkhead_core::virtio::memory::{At, Space};
use bulkhead_core::virtio::ports::{self, Ports};
use bulkhead_core::virtio::queue::Budget;

use crate::console::state::drainer;
use crate::hw::claim::Claim;
use crate::hw::memory;
use crate::hw::mmu::CopyWindows;
use crate::hw::service::Mapped;
use crate::hw::timer;
use crate::managers::{self, Manager};
use crate::plan::plan;
use crate::vm::{LIMITS, VCPU_LOCATION};
use crate::{mailbox, orders, stops, virtio, vm};

/// The state of a port, which the service thread alone uses.
#[derive(Debug)]
struct Port {
    ports: Ports,
    session: Session,
}

/// The ports, by number of the manager.
static PORTS: [Claim<Port>; MAX_MANAGERS] = [const {
    Claim::new(Port {
        ports: Ports::new(false),
        session: Session::new(0),
    })
}; MAX_MANAGERS];

/// Uses a port.
fn with_port<R>(number: usize, act: impl FnOnce(&mut Port) -> R) -> Option<R> {
    PORTS.get(number)?.try_use(act)
}

/// Notes who manages, when the board starts.
pub fn start() {
    managers::start(|number, row| {
        let console = row.flags & VIRTIO_NO_CONSOLE == 0;
        let _free = with_port(number, |port| {
            *port = Port {
                ports: Ports::new(console),
                session: Session::new(row.vm.into()),
            };
        });
    });
}

/// The driver of a console has reset it, or its VM has ended.
pub fn reset(device: usize) {
    if let Some((number, manager)) = managers::of_device(device) {
        let _free = with_port(number, |port| {
            port.ports.reset();
            port.session = Session::new(manager.vm());
        });
        manager.look_again(None);
    }
}

/// Serves the ports of a console, whose queues behind those of port 0 these are.
pub fn serve(
    device: usize,
    rings: &mut [Option<GuestRing>],
    space: &impl Space,
    budget: &mut Budget,
    outcome: &mut Outcome,
) -> Result<(), Broken> {
    let Some((number, manager)) = managers::of_device(device) else {
        return Ok(());
    };
    let service = virtio::service_of(device);
    let Some(thread) = plan().service_threads().get(service) else {
        return Ok(());
    };
    let done = with_port(number, |port| {
        let mut board = OfManager {
            manager,
            copy_windows: CopyWindows::of(thread.pcpu.into()),
        };
        let mut session = port.session.with(&mut board, &manager.events);
        let done = port
            .ports
            .slice(rings, (&Mapped, space), &mut session, budget, outcome);
        manager.look_again(port.session.again());
        done
    });
    done.unwrap_or(Ok(()))
}

/// The board as a manager sees it.
#[derive(Debug)]
struct OfManager {
    manager: &'static Manager,
    /// Those of the service thread's pCPU, which this is.
    copy_windows: CopyWindows,
}

impl Board for OfManager {
    fn plan(&self) -> &Plan<'_> {
        plan()
    }

    fn time(&self) -> [u64; 2] {
        [timer::now(), timer::frequency()]
    }

    fn vm(&self, index: usize) -> VmState {
        let life = &vm::vm(index).life;
        VmState {
            phase: life.power.phase(),
            lives: life.number(),
            settled: life.has_settled().then(|| life.settled()),
        }
    }

    fn vcpu(&self, id: usize, index: usize, number: usize) -> (usize, power::State) {
        let power = &vm::vm(index).life.power;
        (VCPU_LOCATION.of(id), power.state(number))
    }

    fn limits(&self, id: usize) -> Option<VcpuRow> {
        LIMITS.of(plan().vcpus, id)
    }

    fn shut_down(&mut self, index: usize) -> Result<u64, Denied> {
        let left = orders::try_manage(|manage| stops::ask(manage, index));
        let left = left.ok_or(Denied::Busy)?.map_err(Denied::Phase)?;
        Ok(nanoseconds(left, timer::frequency()))
    }

    fn order(&mut self, what: Order, index: usize) -> Result<(), Denied> {
        let done = orders::try_manage(|manage| match what {
            Order::Start => manage.start(index),
            Order::Stop => manage.carry_out(Ordered::Stop, index),
            Order::Restart => manage.carry_out(Ordered::Restart, index),
            Order::Pause => manage.carry_out(Ordered::Pause, index),
            Order::Resume => manage.carry_out(Ordered::Resume, index),
        });
        match done {
            None => Err(Denied::Busy),
            Some(done) => done.map_err(Denied::Phase),
        }
    }

    fn change(&mut self, index: usize, change: Change, is_trial: bool) -> Result<(), Denied> {
        let done =
            orders::try_manage(|_| LIMITS.change_or_try(plan().vcpus, index, change, is_trial));
        done.ok_or(Denied::Busy)?.map_err(Denied::Refused)?;
        if !is_trial {
            orders::follow_limits(index);
        }
        Ok(())
    }

    fn service(&self, index: usize) -> [u64; 3] {
        let time = virtio::service_time(index);
        [time.slices, time.ns, time.longest]
    }

    fn last_crash(&self, index: usize) -> &LastCrash {
        managers::last_crash(index)
    }

    fn is_paused(&self, index: usize) -> bool {
        let vm = vm::vm(index);
        vm.paused_vcpus.load(Ordering::Acquire) == vm.life.power.online()
    }

    fn copy(&mut self, pa: u64, to: At, bytes: u32) {
        memory::copy_out(&mut self.copy_windows, pa, to, bytes);
    }

    fn write(&mut self, bytes: &[u8], to: At) {
        ports::store(&Mapped, to, bytes);
    }

    fn printed(&self, index: usize, from: u64, most: u32, to: &mut [u64]) -> Found {
        managers::backlog(index).read(from, most, to)
    }

    fn type_on(&self, index: usize, bytes: u32, words: [u64; 3]) -> bool {
        let posted = self.manager.typed.post(index, bytes, words);
        if posted {
            mailbox::send(mailbox::of_pcpu(drainer()), mailbox::CONSOLE);
        }
        posted
    }

    fn taken(&self) -> Option<u32> {
        self.manager.typed.taken()
    }

    fn published(&self) -> &Published {
        &self.manager.published
    }

    fn ask(&self, id: usize, request: Request) {
        self.manager.published.ask(id, request);
        if request == Request::Time {
            orders::tell_pcpu(id, mailbox::MONITOR);
        } else {
            mailbox::send(id, mailbox::MONITOR);
        }
    }
}
