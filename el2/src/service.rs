//! The service thread: walks the virtqueues of guests and of backends and copies between them, in slices, with interrupts open in
//! between (`docs/adr/0024-shadow-virtqueues.md`). It has a slot of its pCPU's scheduler, as a vCPU has.

use core::cell::Cell;

use bulkhead_abi::plan::{MAX_VIRTIO_DEVICES, NONE, VIRTIO_RESETS, VirtioDevice};
use bulkhead_core::devices::deadlines::Purpose;
use bulkhead_core::virtio::backend_ring::Slot;
use bulkhead_core::virtio::config::Config;
use bulkhead_core::virtio::console::Console;
use bulkhead_core::virtio::device::{Device, Kind, Outcome, Store};
use bulkhead_core::virtio::interrupt;
use bulkhead_core::virtio::memory::At;
use bulkhead_core::virtio::polls::Polls;
use bulkhead_core::virtio::queue::{Budget, instructions};
use bulkhead_core::virtio::requests::Release;
use bulkhead_core::virtio::round::{Round, SLICE};
use bulkhead_core::virtio::served::Served;
use bulkhead_core::virtio::told::Told;
use bulkhead_core::virtio::{pages, window};

use crate::console::state::output_waits;
use crate::hw::gic::Gic;
use crate::hw::service::{self as memory, Arena, Mapped};
use crate::hw::timer;
use crate::plan::plan;
use crate::profile::MANAGED;
use crate::reach::{Found, Regions, VmSpace, address_in, regions_of};
use crate::vcpu::Vcpu;
use crate::virtio;
use crate::{control, deadlines, mailbox, managers, sched, stops, vm};

const _: () = assert!(size_of::<Service>() as u64 <= pages::THREAD_PAGES * 4096);
const _: () = assert!(size_of::<Entry>() as u64 <= pages::DEVICE_PAGES * 4096);
const _: () = assert!(size_of::<Slot>() as u64 == pages::SLOT_BYTES);

/// What a change of a config takes of a slice.
const CONFIG_COST: u32 = instructions(500);

/// What the other ports of a console leave of a slice to port 0.
const OF_PORT_0: u32 = instructions(400);

/// The state of a service thread.
#[derive(Debug)]
struct Service {
    round: Round,
    polls: Polls,
    /// The devices, by row of the plan.
    devices: [Option<&'static mut Entry>; MAX_VIRTIO_DEVICES],
}

/// A device of a service thread.
#[derive(Debug)]
struct Entry {
    device: Device<'static>,
    config: Config,
    /// The device in its place that EL2 serves itself.
    console: Option<Console>,
    row: &'static VirtioDevice,
    index: usize,
    /// Those of the guest's VM.
    regions: Regions,
    /// The one of them that was found last.
    recent: Cell<Found>,
    window: At,
    /// The page by which the backend is told, in the memory of the backend's VM.
    backend_page_at: At,
    /// The VM of the backend, and the interrupt by which it is told.
    backend: (usize, u32),
    /// The backend is to be told, and could not be.
    untold: bool,
    /// The device has failed, and its status could not be changed yet.
    failed: bool,
    /// Bits of the interrupt status that the guest is to be told of, and could not be yet.
    unshown: bool,
}

/// The loop of a service thread.
pub fn run(vcpu: &mut Vcpu, index: usize) -> ! {
    let mut service = Service::make(vcpu, index);
    let pending = virtio::pending(index);
    loop {
        let worked = service
            .as_deref_mut()
            .is_some_and(|it| it.step(&vcpu.gic, index));
        if !worked && pending.sleep() {
            let mut look = service.as_ref().and_then(|it| it.polls.next());
            if MANAGED {
                let again = managers::again(index).into_iter().chain(stops::next());
                look = look.into_iter().chain(again).min();
            }
            if look.is_some() {
                deadlines::set(vcpu, Purpose::POLL, look);
            }
            sched::block(vcpu);
            if look.is_some() {
                deadlines::set(vcpu, Purpose::POLL, None);
            }
            pending.awake();
        }
        for _ in 0..4 {
            if sched::poll_and_yield(vcpu) {
                break;
            }
        }
    }
}

impl Service {
    /// Makes the state without devices. It is on the stack until it is in place, and nothing else may be there with it.
    #[inline(never)]
    fn empty(arena: &mut Arena) -> Option<&'static mut Self> {
        arena.make(pages::THREAD_PAGES, || Self {
            round: Round::new(),
            polls: Polls::new(),
            devices: [const { None }; MAX_VIRTIO_DEVICES],
        })
    }

    /// Makes the state of a service thread, a part at a time.
    fn make(vcpu: &mut Vcpu, index: usize) -> Option<&'static mut Self> {
        let mut arena = Arena::new(index);
        let service = Self::empty(&mut arena)?;
        sched::poll_and_yield(vcpu);
        for (row, device) in pages::devices(plan(), index) {
            let entry = Entry::make(&mut arena, row, device);
            sched::poll_and_yield(vcpu);
            let entry = entry.and_then(|entry| entry.add_queues(vcpu, &mut arena));
            if let Some(place) = service.devices.get_mut(row) {
                *place = entry;
                service.round.add(row, device.vm as u8);
                if device.poll != 0 {
                    let period = timer::nanoseconds(device.poll);
                    service.polls.add(row, period, timer::now());
                }
            }
        }
        Some(service)
    }

    /// Gives the device whose turn it is a slice. `false`: none has anything to do.
    fn step(&mut self, gic: &Gic, index: usize) -> bool {
        let begin = timer::now();
        // An order to a VM is a slice of its own: it may take as long as one.
        if MANAGED && stops::look(begin) {
            return true;
        }
        let mut rest = virtio::pending(index).take() | self.polls.take(begin);
        if MANAGED {
            rest |= managers::due(index, begin);
        }
        while rest != 0 {
            self.round.wake(rest.trailing_zeros() as usize);
            rest &= rest.wrapping_sub(1);
        }
        let Some(row) = self.round.pick() else {
            return false;
        };
        let mut budget = SLICE;
        let more = match self.devices.get_mut(row) {
            Some(Some(entry)) => entry.slice(gic, &mut budget),
            _ => false,
        };
        self.round.did(row, budget, more);
        virtio::shared(row).count(timer::now().wrapping_sub(begin));
        true
    }
}

impl Entry {
    /// Makes the state of a device, in place: a stack has no room for it.
    #[inline(never)]
    fn make(
        arena: &mut Arena,
        index: usize,
        row: &'static VirtioDevice,
    ) -> Option<&'static mut Self> {
        let backend = plan().backends().get(usize::from(row.backend))?;
        let window = address_in(backend.vm, row.window);
        let backend_page_at = address_in(backend.vm, backend.page);
        let kind = Kind {
            polled: row.poll != 0,
            resets: row.flags & VIRTIO_RESETS != 0,
        };
        arena.make(pages::DEVICE_PAGES, || Self {
            device: Device::new(kind, window, core::iter::empty()),
            config: Config::new(),
            console: (backend.vm == NONE).then(Console::new),
            row,
            index,
            regions: regions_of(row.vm),
            recent: Cell::default(),
            window,
            backend_page_at,
            backend: (usize::from(backend.vm), u32::from(backend.vintid)),
            untold: false,
            failed: false,
            unshown: false,
        })
    }

    /// Adds the queues of the device, one at a time.
    fn add_queues(
        &'static mut self,
        vcpu: &mut Vcpu,
        arena: &mut Arena,
    ) -> Option<&'static mut Self> {
        for queue in plan().virtqueues_of(self.index) {
            if self.console.is_some() {
                break;
            }
            let count = usize::from(queue.slots);
            let (slots, again) = arena.make_arrays(count, Slot::NEW, 0u16)?;
            let store = Store { slots, again };
            self.device
                .add_queue(window::planned(queue, self.window), store);
            sched::poll_and_yield(vcpu);
        }
        Some(self)
    }

    /// Does as much as the budget allows. Returns whether there is more to do at once.
    fn slice(&mut self, gic: &Gic, budget: &mut Budget) -> bool {
        let shared = virtio::shared(self.index);
        let requests = &shared.requests;
        match shared.served.get() {
            Served::Comes => {
                let queues = plan().virtqueues_of(self.index).len();
                self.device.show(&Mapped);
                window::make(&Mapped, self.window, self.row, queues);
                shared.served.made();
                self.untold = true;
            }
            Served::Leaves => self.device.end_session(),
            Served::Gone | Served::Up => {}
        }
        self.follow_config(budget);
        let space = VmSpace::of(self.regions, &self.recent);
        let asked = requests.look();
        let releases = asked.release();
        let started = requests.take_start();
        if started && releases != Some(Release::All) {
            let begun = shared.transport.try_use(|transport| {
                let Some(console) = &mut self.console else {
                    return Some(self.device.start(transport, requests, &Mapped, &space));
                };
                let behind = if MANAGED {
                    control::start_ports(self.index, transport, &space)?
                } else {
                    Outcome::default()
                };
                let mut begun = console.start(transport, requests, &space);
                if behind.failed {
                    console.break_off(&mut begun);
                }
                Some(begun)
            });
            match begun.flatten() {
                // To find and check the rings of all queues takes as long as a slice may: they are served in the next one, and a driver that
                // starts its device all the time pays for that.
                Some(begun) => {
                    self.tell(begun);
                    *budget = Budget::SPENT;
                    return true;
                }
                None => requests.start_again(),
            }
        }
        if releases == Some(Release::All) {
            // That the device has failed is nothing to the driver that has reset it.
            self.failed = false;
        }
        if MANAGED
            && let Some(what) = releases
            && !control::let_go(self.index, what)
        {
            return true;
        }
        let serves =
            self.console.is_some() || matches!(shared.served.get(), Served::Up | Served::Leaves);
        let mut more = false;
        if serves || releases.is_some() {
            let outcome = match &mut self.console {
                Some(console) => {
                    let vm = vm::vm(self.row.vm.into());
                    let ports = if MANAGED && releases.is_none() {
                        serve_ports(self.index, console, budget)
                    } else {
                        Outcome::default()
                    };
                    // Whoever has the emulated UART is the one who uses the streams.
                    let done = vm
                        .pl011
                        .try_use(|_| console.slice(asked, &Mapped, &space, &vm.streams, budget));
                    let done = done.unwrap_or(Outcome {
                        more: true,
                        ..Outcome::default()
                    });
                    if MANAGED { done.and(ports) } else { done }
                }
                None => self.device.slice(asked, &Mapped, &space, budget),
            };
            self.tell(outcome);
            more = outcome.more && serves;
        }
        if releases.is_some() {
            self.wake_guest();
        }
        if shared.served.get() == Served::Leaves && self.device.has_let_go() {
            shared.served.let_go();
            wake_boot_vcpu(self.backend.0);
            more = false;
        }
        self.tell_again(gic);
        more | requests.any() | self.untold | self.failed | self.unshown
    }

    /// Shows the guest what the backend says of the device, or without one the plan. A backend that changes that all the time has less of
    /// each slice.
    fn follow_config(&mut self, budget: &mut Budget) {
        let is_up = virtio::shared(self.index).served.get() == Served::Up;
        let (window, page) = (is_up.then_some(self.window), virtio::page(self.index));
        let config = &self.row.config;
        if self.config.follow(&Mapped, window, config, &page) {
            budget.spend(CONFIG_COST);
        }
    }

    /// Notes what a slice has brought about for the guest and the backend.
    fn tell(&mut self, outcome: Outcome) {
        let shared = virtio::shared(self.index);
        if outcome.used {
            self.unshown |= shared.status.set(interrupt::USED);
        }
        self.untold |= outcome.backend;
        self.failed |= outcome.failed;
    }

    /// Tells the guest and the backend what they are to know.
    fn tell_again(&mut self, gic: &Gic) {
        let (shared, page) = (virtio::shared(self.index), virtio::page(self.index));
        if self.failed {
            let told = shared.transport.try_use(|transport| transport.fail(&page));
            if let Some(tells) = told {
                self.failed = false;
                self.unshown |= tells && shared.status.set(interrupt::CONFIG);
            }
        }
        if self.config.tells(self.device.is_driven()) {
            self.unshown |= shared.status.set(interrupt::CONFIG);
        }
        if self.unshown && shared.status.publish(&page) {
            self.unshown = false;
            virtio::interrupt(self.index, gic);
        }
        if self.untold {
            self.tell_backend();
        }
    }

    /// Tells the backend that the device has something to do.
    fn tell_backend(&mut self) {
        if self.console.is_some() {
            output_waits(self.row.vm.into());
            self.untold = false;
            return;
        }
        if virtio::shared(self.index).served.get() != Served::Up {
            self.untold = false;
            return;
        }
        let bit = 1u64.wrapping_shl(self.row.index.into());
        let told = memory::tell(self.backend_page_at, bit);
        self.untold = told == Told::Again;
        if told == Told::Sleeps {
            let (index, intid) = self.backend;
            let vm = vm::vm(index);
            vm::notify(vm, vm.dist.post(intid, 0));
        }
    }

    /// Wakes the thread that prepares the guest's VM, if it waits for the device.
    fn wake_guest(&self) {
        let vm = usize::from(self.row.vm);
        if !vm::vm(vm).life.power.is_running() {
            wake_boot_vcpu(vm);
        }
    }
}

/// Serves the ports of a console behind its first, with what port 0 leaves of a slice.
fn serve_ports(device: usize, console: &mut Console, budget: &mut Budget) -> Outcome {
    let mut part = *budget;
    part.spend(OF_PORT_0);
    let before = part.left();
    let mut outcome = control::serve(device, console.is_driven(), &mut part);
    if outcome.failed {
        console.break_off(&mut outcome);
    }
    budget.spend(before.wrapping_sub(part.left()));
    outcome
}

/// Makes the boot vCPU of a VM look at what it has to do.
fn wake_boot_vcpu(vm: usize) {
    if let Some(id) = vm::id_of(vm, 0) {
        mailbox::send(id, mailbox::POWER);
    }
}
