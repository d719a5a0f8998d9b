//! Both sides keep to the rules: each request comes back once, with what the backend answered, whatever the order, the framing, the size of slices and
//! however often the backend begins anew. Nobody looks without having been told, so that a lost notification is a request that never comes back.

use std::vec::Vec;

use bulkhead_abi::device::ring;
use proptest::prelude::*;

use super::parts::*;
use crate::virtio::guest_ring::Features;
use crate::virtio::queue::{Budget, Policy, Queue, Step};

/// What happens next.
#[derive(Clone, Debug)]
enum Event {
    /// The driver makes a request.
    Request {
        readable: Vec<u32>,
        writable: Vec<u32>,
        indirect: bool,
        seed: u8,
    },
    /// The service thread has a slice.
    Slice { descriptors: u32, bytes: u32 },
    /// The backend does something, if it is awake.
    Answer {
        which: usize,
        part: u8,
        publish: bool,
    },
    /// The driver handles its interrupt, if there is one.
    Interrupt,
    /// The backend ends, and begins anew.
    Restart,
}

fn events() -> impl Strategy<Value = Event> {
    let lengths = || proptest::collection::vec(0u32..220, 0..4);
    prop_oneof![
        6 => (lengths(), lengths(), any::<bool>(), any::<u8>()).prop_map(
            |(readable, writable, indirect, seed)| Event::Request { readable, writable, indirect, seed }
        ),
        8 => (1u32..6, 1u32..400).prop_map(|(descriptors, bytes)| Event::Slice { descriptors, bytes }),
        6 => (any::<usize>(), any::<u8>(), any::<bool>())
            .prop_map(|(which, part, publish)| Event::Answer { which, part, publish }),
        3 => Just(Event::Interrupt),
        1 => Just(Event::Restart),
    ]
}

struct World {
    ram: Ram,
    queue: Queue<'static>,
    driver: Driver,
    backend: Backend,
    /// Whether the service thread, the backend and the driver have been told, or look again by themselves.
    service: bool,
    backend_awake: bool,
    interrupt: bool,
    requests: u32,
}

impl World {
    fn new(features: Features, policy: Policy) -> Self {
        let ram = Ram::new();
        let queue = queue(&ram, features, policy);
        Self {
            queue,
            driver: Driver::new(features, policy.exact),
            backend: Backend::new(policy.exact),
            service: true,
            backend_awake: true,
            interrupt: false,
            requests: 0,
            ram,
        }
    }

    fn happens(&mut self, event: &Event) {
        match event {
            Event::Request {
                readable,
                writable,
                indirect,
                seed,
            } => {
                let indirect = *indirect && self.driver.features.indirect;
                let made = self
                    .driver
                    .request(&self.ram, readable, writable, indirect, *seed);
                self.requests += u32::from(made);
                self.service |= self.driver.notifies(&self.ram);
            }
            Event::Slice { descriptors, bytes } if self.service => {
                self.slice(Budget::of(*descriptors, *bytes))
            }
            Event::Answer {
                which,
                part,
                publish,
            } if self.backend_awake => {
                self.backend.look(&self.ram);
                self.backend.answer(&self.ram, *which, *part);
                if *publish {
                    self.service |= self.backend.publish(&self.ram);
                    let more = self.backend.sleep(&self.ram);
                    self.backend_awake = more || !self.backend.has.is_empty();
                }
            }
            Event::Interrupt if self.interrupt => {
                self.interrupt = false;
                self.driver.interrupt(&self.ram);
            }
            Event::Restart => self.restart(),
            _ => {}
        }
    }

    fn slice(&mut self, mut budget: Budget) {
        self.queue.hush(&self.ram, &Vm).unwrap();
        let back = self.queue.back(&self.ram, &Vm, &mut budget).unwrap();
        self.interrupt |= self.queue.publish_to_guest(&self.ram, &Vm).unwrap();
        let forward = self.queue.forward(&self.ram, &Vm, &mut budget).unwrap();
        self.backend_awake |= self.queue.publish_to_backend(&self.ram);
        if back != Step::More && forward != Step::More {
            self.service = self.queue.sleep(&self.ram, &Vm).unwrap();
        }
    }

    fn restart(&mut self) {
        let all = || Budget::of(3, 100);
        while self.queue.back(&self.ram, &Vm, &mut all()).unwrap() == Step::More {}
        while self.queue.end_session(&self.ram, &Vm, &mut all()).unwrap() == Step::More {}
        self.interrupt |= self.queue.publish_to_guest(&self.ram, &Vm).unwrap();
        assert_eq!(self.queue.backend().free(), SLOTS);
        self.queue.begin_session(&self.ram);
        self.backend = Backend::new(self.backend.exact);
        self.backend_awake = true;
        self.service = true;
    }

    /// Everybody who was told works until nobody is.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            if self.service {
                self.slice(Budget::of(2, 300));
            } else if self.backend_awake {
                self.happens(&Event::Answer {
                    which: 0,
                    part: 255,
                    publish: true,
                });
            } else if self.interrupt {
                self.happens(&Event::Interrupt);
            } else {
                return;
            }
        }
        panic!("it does not settle");
    }
}

fn run(features: Features, policy: Policy, events: &[Event]) -> World {
    let mut world = World::new(features, policy);
    for event in events {
        world.happens(event);
        let queue = &world.queue;
        assert!(queue.backend().outstanding() <= SLOTS);
        if queue.backend().outstanding() == 0 && !world.service {
            assert!(queue.backend().free() >= SLOTS - 1, "slots come back");
        }
    }
    world.settle();
    assert!(world.driver.waits.is_empty(), "each request comes back");
    assert_eq!(world.driver.done, world.requests);
    assert_eq!(world.queue.backend().free(), SLOTS);
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn each_request_comes_back_once_with_its_answer(
        indirect: bool,
        event_idx: bool,
        exact: bool,
        events in proptest::collection::vec(events(), 1..120),
    ) {
        let features = Features { indirect, event_idx, polled: false };
        let world = run(features, Policy { exact, ..POLICY }, &events);
        prop_assert_eq!(world.driver.dropped, 0, "with replay nothing is lost");
    }

    #[test]
    fn a_queue_that_drops_loses_only_what_a_backend_had(
        events in proptest::collection::vec(events(), 1..120),
    ) {
        let features = Features { indirect: true, event_idx: true, polled: false };
        let world = run(features, Policy { replay: false, ..POLICY }, &events);
        let restarts = events.iter().filter(|event| matches!(event, Event::Restart)).count();
        prop_assert!(restarts > 0 || world.driver.dropped == 0);
    }
}

/// A queue of buffers for the backend to write to, as a network has one: four of the largest are enough for the moment.
const BUFFERS: Policy = Policy {
    readable: 0,
    writable: 60,
    ..POLICY
};

fn buffer(bytes: u32) -> Event {
    Event::Request {
        readable: [].into(),
        writable: [bytes].into(),
        indirect: false,
        seed: 0,
    }
}

proptest! {
    /// A backend that has enough is not told of more, and has all of them when it has given one back.
    #[test]
    fn each_buffer_comes_back_once(
        event_idx: bool,
        events in proptest::collection::vec(
            prop_oneof![events(), (1u32..=60).prop_map(buffer), Just(buffer(60))].prop_filter(
                "buffers only",
                |event| match event {
                    Event::Request { readable, writable, .. } => {
                        readable.is_empty() && writable.iter().sum::<u32>() <= 60
                    }
                    _ => true,
                }
            ),
            1..120,
        ),
    ) {
        let features = Features { indirect: true, event_idx, polled: false };
        run(features, BUFFERS, &events);
    }
}

/// Who has as many buffers as he needs is not notified of more, whether the driver compares as it should or notifies of all that comes behind
/// the entry that it was told. Who has few is.
#[test]
fn a_backend_that_has_buffers_is_not_told_of_more() {
    for event_idx in [true, false] {
        let features = Features {
            indirect: false,
            event_idx,
            polled: false,
        };
        let mut world = World::new(features, BUFFERS);
        (0..4).for_each(|_| world.happens(&buffer(60)));
        world.slice(Budget::of(100, 1000));
        assert!(!world.service);
        let asked = |world: &World| {
            let at = setup().used + ring::avail_event(GUEST_SIZE);
            world
                .ram
                .get16(reached(at))
                .wrapping_sub(world.driver.index())
        };
        for _ in 0..3 {
            world.happens(&buffer(60));
            assert!(!world.service, "it has four, and is told of more");
            assert!(!event_idx || (1..=GUEST_SIZE).contains(&asked(&world)));
        }
        assert_eq!(world.queue.backend().outstanding(), 4);
        let answer = Event::Answer {
            which: 0,
            part: 255,
            publish: true,
        };
        world.happens(&answer);
        assert!(world.service, "it has given one back");
        world.slice(Budget::of(100, 1000));
        assert_eq!(world.queue.backend().outstanding(), 6, "all the others");
        for _ in 0..3 {
            world.happens(&answer);
            world.slice(Budget::of(100, 1000));
        }
        assert_eq!(world.queue.backend().outstanding(), 3);
        world.happens(&Event::Interrupt);
        world.service = false;
        world.happens(&buffer(60));
        assert!(world.service, "it has three");
        world.slice(Budget::of(100, 1000));
        world.happens(&buffer(60));
        assert!(!world.service, "it has four again");
    }
}

/// Of a request with something to read it is told, however many it has.
#[test]
fn a_backend_with_requests_is_told_of_more() {
    let policy = Policy {
        readable: 1,
        ..BUFFERS
    };
    let mut world = World::new(Features::default(), policy);
    for _ in 0..6 {
        world.happens(&buffer(60));
        assert!(core::mem::take(&mut world.service));
        world.slice(Budget::of(100, 1000));
    }
}

/// The index of each ring passes 65,536.
#[test]
fn indices_wrap() {
    let features = Features {
        indirect: true,
        event_idx: true,
        polled: false,
    };
    let mut world = World::new(features, POLICY);
    for round in 0..70_000u32 {
        let event = Event::Request {
            readable: [3].into(),
            writable: [5].into(),
            indirect: round % 2 == 0,
            seed: round as u8,
        };
        world.happens(&event);
        if round % 3 == 0 {
            world.settle();
        }
    }
    world.settle();
    assert_eq!(world.driver.done, world.requests);
    assert!(world.requests > 65_536 + 100);
}

/// Replay keeps the order: a backend that has answered the second of three finds the first and the third, in this order, before anything
/// newer.
#[test]
fn what_was_posted_is_posted_anew_in_order() {
    let features = Features {
        indirect: true,
        event_idx: true,
        polled: false,
    };
    let mut world = World::new(features, POLICY);
    let request = |seed| Event::Request {
        readable: [8].into(),
        writable: [8].into(),
        indirect: true,
        seed,
    };
    for seed in [10, 20, 30] {
        world.happens(&request(seed));
    }
    let slice = Event::Slice {
        descriptors: 100,
        bytes: 1000,
    };
    world.happens(&slice);
    world.happens(&Event::Answer {
        which: 1,
        part: 255,
        publish: true,
    });
    world.happens(&Event::Restart);
    world.happens(&request(40));
    world.happens(&slice);
    world.backend.look(&world.ram);
    let order: Vec<u8> = world
        .backend
        .has
        .iter()
        .map(|chain| chain.readable[0])
        .collect();
    assert_eq!(order, [10, 30, 40]);
    // And once more, with one of them on its way only.
    world.happens(&Event::Restart);
    world.service = true;
    world.happens(&Event::Slice {
        descriptors: 3,
        bytes: 1000,
    });
    world.happens(&Event::Restart);
    world.happens(&slice);
    world.backend.look(&world.ram);
    let order: Vec<u8> = world
        .backend
        .has
        .iter()
        .map(|chain| chain.readable[0])
        .collect();
    assert_eq!(order, [10, 30, 40]);
    world.settle();
    assert_eq!(world.driver.done, 4);
}

/// A driver that merges receive buffers never sees a part of what its backend published at once.
#[test]
fn a_batch_is_seen_as_a_whole() {
    let features = Features {
        indirect: false,
        event_idx: true,
        polled: false,
    };
    let mut world = World::new(features, POLICY);
    for seed in 0..4 {
        world.happens(&Event::Request {
            readable: [].into(),
            writable: [200].into(),
            indirect: false,
            seed,
        });
    }
    world.slice(Budget::of(100, 1000));
    world.backend.look(&world.ram);
    for _ in 0..3 {
        world.backend.answer(&world.ram, 0, 255);
    }
    world.backend.publish(&world.ram);
    let index = |world: &World| world.ram.get16(reached(setup().used + 2));
    let mut slices = 0;
    while index(&world) == 0 {
        world.slice(Budget::of(1, 100));
        slices += 1;
    }
    assert!(slices > 3, "it was cut");
    assert_eq!(index(&world), 3);
}

/// The other side adds something between the request to be told and the last look.
#[test]
fn who_goes_to_sleep_looks_once_more() {
    for event_idx in [true, false] {
        let features = Features {
            indirect: false,
            event_idx,
            polled: false,
        };
        let ram = Ram::new();
        let fresh = || queue(&ram, features, POLICY);
        assert_eq!(fresh().sleep(&ram, &Vm), Ok(false));
        let says = if event_idx {
            setup().used + ring::avail_event(GUEST_SIZE)
        } else {
            setup().used
        };
        let index = reached(setup().available + ring::INDEX);
        *ram.race.borrow_mut() = Some((reached(says), [(index, 1)].into()));
        let mut queue = fresh();
        assert_eq!(queue.sleep(&ram, &Vm), Ok(true), "a chain of the driver's");
        assert_eq!(queue.sleep(&ram, &Vm), Ok(true), "which is still there");
        // Who was asked and has added nothing is not asked again, and what comes then is seen.
        put(&ram, setup().available + ring::INDEX, &[0, 0]);
        assert_eq!(queue.sleep(&ram, &Vm), Ok(false));
        put(&ram, setup().available + ring::INDEX, &[1, 0]);
        assert_eq!(queue.sleep(&ram, &Vm), Ok(true), "of which it has told");
    }
    let features = Features::default();
    let mut world = World::new(features, POLICY);
    world.happens(&Event::Request {
        readable: [1].into(),
        writable: [].into(),
        indirect: false,
        seed: 1,
    });
    let budget = Budget::of(100, 100);
    world.slice(budget);
    let says = WINDOW.start + layout().ring.available + ring::used_event(SLOTS);
    let index = WINDOW.start + layout().ring.used + ring::INDEX;
    *world.ram.race.borrow_mut() = Some((says, [(index, 1)].into()));
    let sleep = world.queue.sleep(&world.ram, &Vm);
    assert_eq!(sleep, Ok(true), "a chain that the backend gives back");
}

/// A polled device never asks to be notified.
#[test]
fn a_polled_device_is_not_notified() {
    let features = Features {
        polled: true,
        ..Features::default()
    };
    let ram = Ram::new();
    let mut queue = queue(&ram, features, POLICY);
    queue.hush(&ram, &Vm).unwrap();
    assert_eq!(ram.get16(reached(setup().used)), ring::NO_NOTIFY);
    put(&ram, setup().available + ring::INDEX, &[1, 0]);
    assert_eq!(queue.sleep(&ram, &Vm), Ok(false));
    assert_eq!(ram.get16(reached(setup().used)), ring::NO_NOTIFY);
}

/// A backend that relies on rings which are all zeros when it begins is told of the first chain, and tells of it.
#[test]
fn rings_of_a_new_session_are_zeros() {
    let ram = Ram::new();
    let bytes = (layout().ring.end - layout().ring.table) as usize;
    ram.write(WINDOW.start + layout().ring.table, &std::vec![0x55; bytes]);
    let mut driver = Driver::new(Features::default(), true);
    let mut queue = queue(&ram, driver.features, POLICY);
    driver.request(&ram, &[1], &[1], false, 1);
    let mut budget = Budget::of(100, 100);
    queue.forward(&ram, &Vm, &mut budget).unwrap();
    assert!(queue.publish_to_backend(&ram));
    let mut backend = Backend::new(true);
    backend.look(&ram);
    backend.answer(&ram, 0, 255);
    assert!(backend.publish(&ram));
}
