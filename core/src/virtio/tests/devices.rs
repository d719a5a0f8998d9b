//! A device with its registers, its driver and its backend, while the driver resets it, the backend restarts or asks for another session, and either
//! breaks rules. Nobody looks without having been told.

use std::vec;

use proptest::prelude::*;

use bulkhead_abi::device::{device_page, ring};

use super::parts::*;
use crate::virtio::backend_ring::Slot;
use crate::virtio::device::{Device, Kind, Outcome, Planned, Store};
use crate::virtio::guest_ring::Features;
use crate::virtio::memory::At;
use crate::virtio::queue::{Budget, Policy};
use crate::virtio::requests::{Release, Requests};
use crate::virtio::transport::{Effect, Offer, Page, Transport, feature, register};

pub const OFFER: Offer = Offer {
    device: 2,
    features: feature::VERSION_1
        | feature::EVENT_IDX
        | feature::INDIRECT_DESC
        | feature::RING_RESET,
    queues: &[GUEST_SIZE],
    config: &[],
};

/// What the guest reads is tried elsewhere.
pub struct Unread;

impl Page for Unread {
    fn set(&self, _: u64, _: u32) {}

    fn get(&self, _: u64) -> u32 {
        0
    }
}

#[derive(Clone, Debug)]
enum Event {
    Request {
        readable: u32,
        writable: u32,
        seed: u8,
    },
    Slice {
        descriptors: u32,
        bytes: u32,
    },
    Answer {
        which: usize,
        part: u8,
    },
    Interrupt,
    /// The driver resets the device, or its queue, and sets it up anew.
    Reset,
    ResetQueue,
    /// The driver writes the reset, does not repeat it, and resets its queue.
    SkippedReset,
    /// The backend's VM ends, and another life begins.
    Death,
    /// The backend wants another session.
    Restart,
    /// A broken ring; a broken backend, by its index, or by what it gives back behind so much that is right.
    BreakRing,
    BreakBackend,
    BreakBatch(u8),
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0u32..500, 0u32..500, any::<u8>())
            .prop_map(|(readable, writable, seed)| Event::Request { readable, writable, seed }),
        12 => (1u32..6, 1u32..600).prop_map(|(descriptors, bytes)| Event::Slice { descriptors, bytes }),
        8 => (any::<usize>(), any::<u8>()).prop_map(|(which, part)| Event::Answer { which, part }),
        4 => Just(Event::Interrupt),
        1 => Just(Event::Reset),
        1 => Just(Event::ResetQueue),
        1 => Just(Event::SkippedReset),
        1 => Just(Event::Death),
        1 => Just(Event::Restart),
        1 => Just(Event::BreakRing),
        1 => Just(Event::BreakBackend),
        1 => (0u8..3).prop_map(Event::BreakBatch),
    ]
}

struct World {
    ram: Ram,
    device: Device<'static>,
    requests: Requests,
    transport: Transport,
    driver: Driver,
    backend: Backend,
    /// The session that the backend serves, once it is live.
    serves: u32,
    service: bool,
    backend_told: bool,
    interrupt: bool,
    failed: bool,
    done: u32,
    made: u32,
    /// Requests that went with a reset.
    lost: u32,
}

const FEATURES: Features = Features {
    indirect: false,
    event_idx: true,
    polled: false,
};
const POLLED: Features = Features {
    event_idx: false,
    polled: true,
    ..FEATURES
};

impl World {
    fn new(policy: Policy, resets: bool) -> Self {
        Self::of(FEATURES, policy, resets)
    }

    fn of(features: Features, policy: Policy, resets: bool) -> Self {
        let ram = Ram::new();
        let planned = Planned {
            layout: layout(),
            policy,
        };
        let store = Store {
            slots: vec![Slot::NEW; SLOTS.into()].leak(),
            again: vec![0; SLOTS.into()].leak(),
        };
        let kind = Kind {
            polled: features.polled,
            resets,
        };
        let queues = [(planned, store)].into_iter();
        let device = Device::new(kind, At::new(WINDOW.start), queues);
        device.show(&ram);
        let mut world = Self {
            ram,
            device,
            requests: Requests::new(),
            transport: Transport::new(),
            driver: Driver::new(features, policy.exact),
            backend: Backend::new(policy.exact),
            serves: 0,
            service: true,
            backend_told: true,
            interrupt: false,
            failed: false,
            done: 0,
            made: 0,
            lost: 0,
        };
        world.set_up();
        world
    }

    fn write(&mut self, offset: u64, value: u32) -> Effect {
        self.transport.write(&OFFER, &Unread, offset, 4, value)
    }

    /// The driver begins with the device, whose ring is empty.
    fn set_up(&mut self) {
        self.write(register::STATUS, 3);
        let mut taken = feature::VERSION_1 | feature::EVENT_IDX | feature::RING_RESET;
        if !self.driver.features.event_idx {
            taken &= !feature::EVENT_IDX;
        }
        for (word, value) in [(0, taken as u32), (1, (taken >> 32) as u32)] {
            self.write(register::DRIVER_FEATURES_SEL, word);
            self.write(register::DRIVER_FEATURES, value);
        }
        self.write(register::STATUS, 11);
        self.set_up_queue();
        assert_eq!(self.write(register::STATUS, 15), Effect::Start);
        self.started();
    }

    fn started(&mut self) {
        self.requests.start();
        self.service = true;
    }

    fn set_up_queue(&mut self) -> Effect {
        self.lost += self.driver.waits.len() as u32;
        self.done += self.driver.done;
        self.driver = Driver::new(self.driver.features, self.backend.exact);
        put(&self.ram, setup().table, &[0; 0x200]);
        self.interrupt = false;
        self.write(register::QUEUE_SEL, 0);
        self.write(register::QUEUE_NUM, GUEST_SIZE.into());
        for (offset, value) in [
            (register::QUEUE_DESC, setup().table),
            (register::QUEUE_DRIVER, setup().available),
            (register::QUEUE_DEVICE, setup().used),
        ] {
            self.write(offset, value as u32);
            self.write(offset + 4, 0);
        }
        self.write(register::QUEUE_READY, 1)
    }

    /// The guest repeats a write until it is done.
    fn release(&mut self, what: Release) {
        for _ in 0..100 {
            if self.requests.release(what) {
                return;
            }
            self.service = true;
            self.slice(Budget::of(3, 200));
        }
        panic!("the service thread does not let go");
    }

    fn happens(&mut self, event: &Event) {
        match event {
            Event::Request {
                readable,
                writable,
                seed,
            } if !self.failed => {
                let (readable, writable) = (vec![*readable], vec![*writable]);
                let made = self
                    .driver
                    .request(&self.ram, &readable, &writable, false, *seed);
                self.made += u32::from(made);
                if self.driver.notifies(&self.ram) {
                    self.service = true;
                }
            }
            Event::Slice { descriptors, bytes } if self.service => {
                self.slice(Budget::of(*descriptors, *bytes))
            }
            Event::Answer { which, part } if self.backend_told => self.answer(*which, *part),
            Event::Interrupt if self.interrupt && !self.failed => {
                self.interrupt = false;
                self.driver.interrupt(&self.ram);
            }
            Event::Reset => self.reset(),
            Event::ResetQueue if !self.failed => {
                self.write(register::QUEUE_SEL, 0);
                assert_eq!(self.write(register::QUEUE_RESET, 1), Effect::Release(0));
                self.release(Release::Queue(0));
                self.transport.release(0, &OFFER, &Unread);
                assert_eq!(self.set_up_queue(), Effect::Enable(0));
                self.started();
            }
            Event::SkippedReset if !self.failed => {
                self.requests.release(Release::All);
                self.service = true;
                self.settle();
                // Its rings are used no more, so that it begins with others. The reset that was done for nobody is not the next
                // one: `reset` notices.
                self.happens(&Event::ResetQueue);
            }
            Event::Death => {
                self.device.end_session();
                while !self.device.has_let_go() {
                    self.slice(Budget::of(3, 200));
                }
                for word in [device_page::READY, device_page::RESTART] {
                    self.put(word, 0);
                }
                (self.serves, self.backend_told) = (0, true);
            }
            Event::Restart => {
                let session = self.get(device_page::SESSION);
                self.put(device_page::RESTART, session);
                (self.service, self.backend_told) = (true, true);
            }
            Event::BreakRing if !self.failed => {
                let index = setup().available + ring::INDEX;
                put(&self.ram, index, &0x7000u16.to_le_bytes());
                self.service = true;
                self.settle();
                assert!(self.failed, "the device needs a reset");
                assert!(self.device.has_let_go());
                self.reset();
            }
            Event::BreakBackend => {
                let index = WINDOW.start + layout().ring.used + ring::INDEX;
                self.ram.write(index, &0x7000u16.to_le_bytes());
                self.service = true;
            }
            Event::BreakBatch(right) if self.serves == self.get(device_page::SESSION) => {
                self.backend.look(&self.ram);
                (0..*right).for_each(|_| self.backend.answer(&self.ram, 0, 255));
                self.backend.give(&self.ram, u32::MAX, 0);
                self.backend.publish(&self.ram);
                self.service = true;
            }
            _ => {}
        }
    }

    /// The driver resets the device and begins anew.
    fn reset(&mut self) {
        assert_eq!(self.write(register::STATUS, 0), Effect::Reset);
        self.release(Release::All);
        assert!(self.device.has_let_go());
        self.transport.reset(&OFFER, &Unread);
        self.failed = false;
        self.set_up();
    }

    fn slice(&mut self, mut budget: Budget) {
        let mut outcome = Outcome::default();
        if self.requests.take_start() {
            outcome = self
                .device
                .start(&self.transport, &self.requests, &self.ram, &Vm);
        }
        let more = self
            .device
            .slice(self.requests.look(), &self.ram, &Vm, &mut budget);
        self.interrupt |= more.used;
        self.backend_told |= more.backend;
        if outcome.failed || more.failed {
            self.transport.fail(&Unread);
            self.failed = true;
        }
        self.service = more.more || self.requests.any();
    }

    fn get(&self, word: usize) -> u32 {
        self.ram.get32(WINDOW.start + word as u64)
    }

    fn put(&self, word: usize, value: u32) {
        self.ram
            .write(WINDOW.start + word as u64, &value.to_le_bytes());
    }

    /// The backend looks at its device page, and then at its ring.
    fn answer(&mut self, which: usize, part: u8) {
        let session = self.get(device_page::SESSION);
        if self.get(device_page::READY) != session {
            self.serves = 0;
            self.backend = Backend::new(self.backend.exact);
            self.put(device_page::READY, session);
            self.service = true;
            return;
        }
        if self.get(device_page::LIVE) != session {
            self.backend_told = false;
            return;
        }
        self.serves = session;
        self.backend.look(&self.ram);
        self.backend.answer(&self.ram, which, part);
        self.service |= self.backend.publish(&self.ram);
        let more = self.backend.sleep(&self.ram);
        self.backend_told = more || !self.backend.has.is_empty();
    }

    /// Everybody who was told works until nobody is.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            if self.service {
                self.slice(Budget::of(2, 300));
            } else if self.backend_told {
                self.answer(0, 255);
            } else if self.interrupt && !self.failed {
                self.happens(&Event::Interrupt);
            } else {
                return;
            }
        }
        panic!("it does not settle");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 800, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_but_by_a_reset(
        replay: bool,
        exact: bool,
        events in proptest::collection::vec(events(), 1..150),
    ) {
        let mut world = World::new(Policy { replay, exact, ..POLICY }, false);
        for event in &events {
            world.happens(event);
        }
        // Whatever has happened, the device works.
        world.settle();
        prop_assert!(!world.failed, "whatever its backend does");
        prop_assert!(world.device.is_live());
        prop_assert!(world.driver.waits.is_empty(), "each request comes back");
        prop_assert_eq!(world.done + world.driver.done + world.lost, world.made);
        let before = world.driver.done;
        world.happens(&Event::Request { readable: 300, writable: 300, seed: 1 });
        world.settle();
        prop_assert_eq!(world.driver.done, before + 1);
    }

    /// What a backend had cannot be given to the next one: the guest is told.
    #[test]
    fn a_device_with_state_needs_a_reset(
        events in proptest::collection::vec(events(), 1..100),
    ) {
        let mut world = World::new(POLICY, true);
        for event in &events {
            world.happens(event);
        }
        if !world.failed {
            world.settle();
            prop_assert!(world.failed || world.driver.waits.is_empty());
        }
    }
}

#[test]
fn a_backend_that_ends_with_requests_fails_a_device_with_state_and_no_other() {
    for (resets, replay, failed) in [
        (true, true, true),
        (false, true, false),
        (false, false, false),
    ] {
        let mut world = World::new(Policy { replay, ..POLICY }, resets);
        world.settle();
        world.happens(&Event::Request {
            readable: 9,
            writable: 9,
            seed: 1,
        });
        while world.service {
            world.slice(Budget::of(9, 900));
        }
        world.happens(&Event::Death);
        assert_eq!(world.failed, failed);
        if !failed {
            world.settle();
            assert_eq!(
                (world.driver.done, world.driver.dropped),
                (1, u32::from(!replay))
            );
        }
        assert_eq!(world.transport.is_driven(), !failed);
    }
}

/// A queue whose rings cannot be there.
#[test]
fn a_queue_that_cannot_be_fails_the_device() {
    let mut world = World::new(POLICY, false);
    world.happens(&Event::Reset);
    assert_eq!(world.write(register::STATUS, 0), Effect::Reset);
    world.release(Release::All);
    world.transport.reset(&OFFER, &Unread);
    world.write(register::QUEUE_SEL, 0);
    world.write(register::QUEUE_DESC, 0x1000);
    world.set_up();
    assert!(!world.failed);
    let mut world = World::new(POLICY, false);
    world.reset();
    world.write(register::STATUS, 0);
    world.release(Release::All);
    world.transport.reset(&OFFER, &Unread);
    world.write(register::QUEUE_SEL, 0);
    world.write(register::QUEUE_NUM, 8);
    world.write(register::QUEUE_DESC, 0x1000);
    world.write(register::QUEUE_READY, 1);
    world.set_up();
    world.settle();
    assert!(world.failed);
    assert!(!world.device.is_live());
}

/// A chain that comes between the request to be notified and the last look.
#[test]
fn a_chain_that_comes_while_the_service_thread_goes_to_sleep() {
    let mut world = World::new(POLICY, false);
    world.settle();
    let says = reached(setup().used + ring::avail_event(GUEST_SIZE));
    let index = reached(setup().available + ring::INDEX);
    world.happens(&Event::Request {
        readable: 9,
        writable: 9,
        seed: 1,
    });
    // The driver is told to be silent first.
    world.slice(Budget::of(1, 1));
    *world.ram.race.borrow_mut() = Some((says, vec![(index, 2)]));
    while world.ram.race.borrow().is_some() {
        assert!(world.service, "it was not asked");
        world.slice(Budget::of(9, 900));
    }
    assert!(world.service);
}

/// The backend still has a chain of the queue that the driver resets: it belongs to no later one.
#[test]
fn a_queue_that_comes_back_is_another_one() {
    let mut world = World::new(POLICY, false);
    world.settle();
    let request = |seed| Event::Request {
        readable: 9,
        writable: 9,
        seed,
    };
    world.happens(&request(1));
    while world.service {
        world.slice(Budget::of(9, 900));
    }
    world.backend.look(&world.ram);
    assert_eq!(world.backend.has.len(), 1);
    world.happens(&Event::ResetQueue);
    world.happens(&request(2));
    while world.service {
        world.slice(Budget::of(9, 900));
    }
    assert!(world.device.has_let_go(), "until the backend has let go");
    world.settle();
    assert_eq!((world.driver.done, world.lost), (1, 1));
}

/// Whoever looks finds what there is. A polled device says from its start on that it looks by itself, also before its backend is there,
/// and never interrupts, although its driver does not say that it need not.
#[test]
fn a_polled_device_is_served_without_a_word_to_or_from_its_driver() {
    for first in [Event::Reset, Event::ResetQueue, Event::Restart] {
        let mut world = World::of(POLLED, POLICY, false);
        let budget = Budget::of(9, 900);
        world.slice(budget);
        assert!(!world.device.is_live());
        let flags = reached(setup().used);
        assert_eq!(world.ram.get16(flags), ring::NO_NOTIFY, "no backend yet");
        world.happens(&first);
        world.slice(budget);
        for seed in 1..=20 {
            let before = world.driver.done;
            assert!(world.driver.request(&world.ram, &[9], &[9], false, seed));
            assert!(!world.driver.notifies(&world.ram), "{first:?}, {seed}");
            // A look, the backend's answer, and the next look.
            for _ in 0..6 {
                world.slice(budget);
                world.backend_told = true;
                world.answer(0, 255);
            }
            world.slice(budget);
            assert_eq!(world.ram.get16(flags), ring::NO_NOTIFY);
            assert!(!world.interrupt, "{first:?}, {seed}");
            world.driver.interrupt(&world.ram);
            assert_eq!(world.driver.done, before + 1, "{first:?}, {seed}");
        }
    }
}

/// Whatever EL2 changes in the words of a session, the backend is told.
#[test]
fn a_backend_is_told_of_its_session() {
    let mut world = World::new(POLICY, false);
    world.answer(0, 0);
    assert_eq!(world.get(device_page::READY), 1);
    world.backend_told = false;
    while world.service {
        world.slice(Budget::of(9, 900));
    }
    assert!(world.device.is_live() && world.backend_told, "it is live");
    world.backend_told = false;
    world.device.end_session();
    while !world.device.has_let_go() {
        world.slice(Budget::of(9, 900));
    }
    assert!(world.backend_told, "it has ended");
}
