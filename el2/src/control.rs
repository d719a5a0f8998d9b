//! The control port of managers ([ADR 27](../../docs/adr/0027-control.md)): `bulkhead_core::control` decides, this module does it: in the exit
//! by which a manager tells of a request, and in the service thread that serves the consoles what takes longer or comes without a request.

use core::cell::Cell;
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
use bulkhead_core::virtio::memory::{At, Memory, Space};
use bulkhead_core::virtio::ports::{Look, Ports};
use bulkhead_core::virtio::queue::{Budget, instructions};
use bulkhead_core::virtio::requests::Release;
use bulkhead_core::virtio::round::SLICE;
use bulkhead_core::virtio::transport::Transport;

use crate::console::state::drainer;
use crate::hw::claim::Claim;
use crate::hw::memory;
use crate::hw::mmu::CopyWindows;
use crate::hw::service::Mapped;
use crate::hw::timer;
use crate::managers::{self, Manager};
use crate::plan::plan;
use crate::reach::{self, Regions, VmSpace, regions_of};
use crate::vcpu::Vcpu;
use crate::vm::{LIMITS, VCPU_LOCATION};
use crate::{mailbox, orders, stops, virtio, vm};

/// A port: one at a time serves it, the service thread in a slice or a vCPU of the manager in an exit.
#[derive(Debug)]
struct Port {
    ports: Ports,
    session: Session,
    /// The regions of the manager, and the one that was found last.
    regions: Regions,
    recent: Cell<reach::Found>,
    /// What an exit has brought about and could not tell.
    owed: Outcome,
}

/// The ports, by number of the manager.
static PORTS: [Claim<Port>; MAX_MANAGERS] = [const {
    Claim::new(Port {
        ports: Ports::new(false),
        session: Session::new(0),
        regions: (&[], &[]),
        recent: Cell::new(reach::Found::NONE),
        owed: Outcome::NOTHING,
    })
}; MAX_MANAGERS];

/// What an exit may do of a slice: less than the service thread, by what an exit takes besides.
const AT_EXIT: u32 = instructions(500);

/// Uses the port of a console. `None`: somebody else does at this moment. `other` is for a console that has none.
fn with_port<R>(
    device: usize,
    other: R,
    act: impl FnOnce(&mut Port, &'static Manager) -> R,
) -> Option<R> {
    match managers::of_device(device) {
        Some((number, manager)) => PORTS.get(number)?.try_use(|port| act(port, manager)),
        None => Some(other),
    }
}

/// Notes who manages, when the board starts.
pub fn start() {
    managers::start(|number, row| {
        let console = row.flags & VIRTIO_NO_CONSOLE == 0;
        let Some(port) = PORTS.get(number) else {
            return;
        };
        let _free = port.try_use(|port| {
            port.ports = Ports::new(console);
            port.session = Session::new(row.vm.into());
            port.regions = regions_of(row.vm);
        });
    });
}

/// Takes over the queues behind those of port 0, which the driver has set up. `None`: to be tried again.
pub fn start_ports(device: usize, transport: &Transport, space: &impl Space) -> Option<Outcome> {
    with_port(device, Outcome::NOTHING, |port, _| Outcome {
        failed: !port.ports.start(transport, space),
        ..Outcome::NOTHING
    })
}

/// Lets go of a queue, or of all because the driver has reset the console, or its VM has ended. `false`: to be tried again.
pub fn let_go(device: usize, what: Release) -> bool {
    let done = with_port(device, (), |port, manager| {
        port.ports.let_go(what);
        if what == Release::All {
            port.session = Session::new(manager.vm());
            port.owed = Outcome::NOTHING;
            manager.look_again(None);
        }
    });
    done.is_some()
}

/// Serves the port of a console in a slice of the service thread. Without `driven` port 0 is not served any more, and so is nothing.
pub fn serve(device: usize, driven: bool, budget: &mut Budget) -> Outcome {
    let service = plan()
        .service_threads()
        .get(virtio::service_of(device))
        .map_or(0, |row| row.pcpu.into());
    let done = with_port(device, Outcome::NOTHING, |port, manager| {
        if !driven {
            port.ports.stop();
        }
        let owed = core::mem::replace(&mut port.owed, Outcome::NOTHING);
        let mut board = OfManager::new(manager, CopyWindows::of(service));
        port.slice(Look::All, &mut board, budget).and(owed)
    });
    // Another pCPU is at it.
    done.unwrap_or(Outcome {
        more: true,
        ..Outcome::NOTHING
    })
}

/// Serves the port in the exit by which the manager has told of a request, or of room for a message: as much as an exit may do. The service
/// thread does the rest.
#[inline(always)]
pub fn serve_at_exit(vcpu: &mut Vcpu, device: usize) {
    let mut budget = SLICE;
    budget.spend(AT_EXIT);
    let windows = CopyWindows::of(vcpu.index);
    let done = with_port(device, (false, true), |port, manager| {
        let mut board = OfManager::new(manager, windows);
        let done = port.slice(Look::Messages, &mut board, &mut budget);
        let (interrupts, told) = if done.used {
            virtio::show_used(device)
        } else {
            (false, true)
        };
        port.owed.failed |= done.failed;
        port.owed.used |= !told;
        let waits = port.session.again().is_some() || board.asked_to_stop;
        (interrupts, done.more || done.failed || !told || waits)
    });
    let (interrupts, more) = done.unwrap_or((false, true));
    if more {
        virtio::wake(device);
    }
    if interrupts {
        virtio::interrupt(device, &vcpu.gic);
    }
}

impl Port {
    /// Does as much as the budget allows.
    #[inline(never)]
    fn slice(&mut self, look: Look, board: &mut OfManager, budget: &mut Budget) -> Outcome {
        let manager = board.manager;
        manager.events.begin_turn();
        let space = VmSpace::of(self.regions, &self.recent);
        let mut session = self.session.with(board, &manager.events);
        let guest = (&Mapped, &space);
        let mut outcome = self.ports.slice(look, guest, &mut session, budget);
        manager.look_again(self.session.again());
        outcome.more |= manager.events.end_turn() && self.ports.can_tell();
        outcome
    }
}

/// The board as a manager sees it.
#[derive(Debug)]
struct OfManager {
    manager: &'static Manager,
    /// Those of this pCPU.
    copy_windows: CopyWindows,
    /// A VM was asked to stop: a service thread has to look when its time is over.
    asked_to_stop: bool,
}

impl OfManager {
    const fn new(manager: &'static Manager, copy_windows: CopyWindows) -> Self {
        Self {
            manager,
            copy_windows,
            asked_to_stop: false,
        }
    }
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
        self.asked_to_stop = true;
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
        Mapped.write(to, bytes);
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
