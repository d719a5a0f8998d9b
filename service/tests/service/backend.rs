//! The whole backend against the model of EL2, which acts before any one of its accesses, and tells it what it has to.

use std::cell::RefCell;
use std::rc::Rc;

use arrayvec::ArrayVec;
use bulkhead_abi::device::{Refusal, device_page as page};
use bulkhead_service::backend::{Backend, Units};
use bulkhead_service::counts::{self, Counts};
use bulkhead_service::disk::Disk;
use bulkhead_service::memory::Memory;
use bulkhead_service::store::Ram;
use bulkhead_service::switch::{Lost, Mac, PortPlan, Switch};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::el2::{self, Device, Plan, tell};
use crate::memory::{Life, TestMemory};

const PORTS: [PortPlan; 2] = [port(1), port(2)];
const NET_FEATURES: u64 = 1 << 32 | 1 << 29 | 1 << 16 | 1 << 15 | 1 << 5;
const QUOTA: u32 = 4;

const fn port(last: u8) -> PortPlan {
    PortPlan {
        mac: Mac([2, 0, 0, 0, 0, last]),
        vlan: 1,
        mtu: 1500,
        uplink: false,
    }
}

type Service = Backend<TestMemory, Ram<TestMemory>, 4>;

/// EL2 and the guests.
struct El2 {
    page: TestMemory,
    counts: TestMemory,
    devices: Vec<Device>,
    interrupt: bool,
}

impl El2 {
    fn new() -> Self {
        let page = el2::backend_page();
        let net = |last, index| {
            let config = [2, 0, 0, 0, 0, last, 0, 0];
            Device::new(
                &page,
                &Plan {
                    id: 1,
                    index,
                    unit: u32::from(last) - 1,
                    offered: NET_FEATURES,
                    config: &config,
                    sizes: &[8, 8],
                },
            )
        };
        let capacity = 8u64.to_le_bytes();
        let disk = Device::new(
            &page,
            &Plan {
                id: 2,
                index: 63,
                unit: 0,
                offered: 1 << 32,
                config: &capacity,
                sizes: &[8],
            },
        );
        Self {
            devices: vec![net(2, 5), disk, net(1, 0)],
            page,
            counts: TestMemory::new(counts::BYTES as usize),
            interrupt: false,
        }
    }

    fn service(&self, life: &Rc<Life>) -> Service {
        let windows = self.devices.iter().map(|device| device.memory.with(life));
        let mut disks = ArrayVec::new();
        disks.push(Disk::new(Ram::new(TestMemory::new(4096)), [b'd'; 20]));
        Backend::new(
            self.page.with(life),
            windows.collect(),
            Switch::new(&PORTS, 100).unwrap(),
            disks,
            Counts::new(self.counts.with(life)),
            QUOTA,
        )
    }

    /// A guest adds something to a queue and EL2 tells the backend if it wants to know.
    fn post(&mut self, device: usize) {
        let one = &mut self.devices[device];
        let Some(number) = one.queues.len().checked_sub(1) else {
            return;
        };
        let source = PORTS[one.word(page::UNIT) as usize].mac.0;
        let queue = &mut one.queues[number];
        let added = if one.index == 63 {
            let flush = [&[4, 0, 0, 0][..], &[0; 12]].concat();
            queue.add(&[&flush], &[1])
        } else {
            let frame = [&[0; 12][..], &[0xff; 6], &source, &[8, 0], &[0; 40]].concat();
            queue.add(&[&frame], &[])
        };
        if added.is_some() && queue.kick() {
            self.interrupt |= tell(&self.page, self.devices[device].index);
        }
    }

    fn reset(&mut self, device: usize) {
        let one = &mut self.devices[device];
        one.session += 1;
        one.memory
            .store32(page::SESSION as u64, one.session)
            .unwrap();
        one.queues.clear();
        self.interrupt |= tell(&self.page, one.index);
    }

    /// The backend has rung for these.
    fn rung(&mut self, rings: u64) {
        for device in &mut self.devices {
            if rings >> device.index & 1 == 0 {
                continue;
            }
            device
                .queues
                .iter_mut()
                .for_each(|queue| drop(queue.take()));
            if device.go_on(0) {
                // What it told may have found the backend asleep.
                self.interrupt = true;
            }
        }
    }

    fn act(&mut self, action: usize) {
        match action {
            0..3 => self.post(action),
            _ => self.reset(action - 3),
        }
    }

    /// Whether all that was posted was served, and taken.
    fn is_served(&self) -> bool {
        self.devices.iter().all(|device| {
            let queue = device.queues.last();
            device.live == device.session
                && queue.is_some_and(|queue| queue.used == queue.available)
        })
    }
}

/// The main loop, until it would wait for an interrupt.
fn run(service: &mut Service, el2: &RefCell<El2>) {
    for _ in 0..200 {
        service.take_told().unwrap();
        let more = service.serve(0);
        el2.borrow_mut().rung(service.take_rings());
        if !more && !service.arm().unwrap() {
            return;
        }
    }
    panic!("it never sleeps");
}

/// The VM: it wakes when its interrupt is pending.
fn run_awake(service: &mut Service, el2: &RefCell<El2>) {
    while std::mem::take(&mut el2.borrow_mut().interrupt) {
        run(service, el2);
    }
}

fn started(life: &Rc<Life>) -> (Rc<RefCell<El2>>, Service) {
    let el2 = Rc::new(RefCell::new(El2::new()));
    let mut service = el2.borrow().service(life);
    run(&mut service, &el2);
    run_awake(&mut service, &el2);
    assert!(el2.borrow().is_served());
    (el2, service)
}

/// Whatever EL2 does before any one access of the backend, it is served in the end, with the interrupts there are.
#[test]
fn nothing_is_slept_over() {
    for first in 0..6 {
        for second in 0..6 {
            let mut steps = 0..;
            loop {
                let step = steps.next().unwrap();
                let life = Rc::new(Life::default());
                let (el2, mut service) = started(&life);
                el2.borrow_mut().act(first);
                let other = el2.clone();
                let before = life.steps.get();
                life.at(step, move || other.borrow_mut().act(second));
                run_awake(&mut service, &el2);
                let end = life.steps.get() - before;
                let served = el2.borrow().is_served();
                assert!(served, "{first}, then {second} before access {step}");
                assert_eq!(service.broken(), 0);
                if step > end {
                    break;
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn devices_that_come_and_go_are_all_served(
        rounds in vec((vec(0..6usize, 0..30), 0..300u64, 0..6usize), 1..8),
    ) {
        let life = Rc::new(Life::default());
        let (el2, mut service) = started(&life);
        for (actions, step, late) in rounds {
            actions.into_iter().for_each(|action| el2.borrow_mut().act(action));
            let other = el2.clone();
            life.at(step, move || other.borrow_mut().act(late));
            run_awake(&mut service, &el2);
            prop_assert!(el2.borrow().is_served());
        }
        prop_assert_eq!(service.broken(), 0);
    }

    /// Pages of any bytes, and rings at any place: the backend comes back, and other devices are served.
    #[test]
    fn pages_of_any_bytes_harm_no_other_device(
        page_bytes in vec(prop_oneof![2 => Just(0u8), 1 => Just(1), 1 => any::<u8>()], 0x300),
        live in any::<bool>(),
    ) {
        let life = Rc::new(Life::default());
        let (el2, mut service) = started(&life);
        let memory = el2.borrow().devices[0].memory.clone();
        memory.write(0, &page_bytes).unwrap();
        if live {
            let session = memory.load32(page::SESSION as u64).unwrap();
            memory.store32(page::LIVE as u64, session).unwrap();
        }
        for _ in 0..20 {
            tell(&el2.borrow().page, 5);
            service.take_told().unwrap();
            service.serve(0);
            service.take_rings();
            service.arm().unwrap();
        }
        // A backend that finds such a page first.
        let mut fresh = el2.borrow().service(&life);
        for _ in 0..20 {
            fresh.take_told().unwrap();
            fresh.serve(0);
            fresh.arm().unwrap();
        }
        el2.borrow_mut().post(1);
        el2.borrow_mut().post(2);
        run_others(&mut service, &el2);
        let el2 = el2.borrow();
        for device in &el2.devices[1..] {
            let queue = device.queues.last().unwrap();
            prop_assert_eq!(queue.index(), queue.available);
        }
    }
}

fn run_others(service: &mut Service, el2: &RefCell<El2>) {
    for _ in 0..10 {
        for index in [0, 63] {
            tell(&el2.borrow().page, index);
        }
        service.take_told().unwrap();
        service.serve(0);
        service.take_rings();
    }
}

#[test]
fn a_flood_of_one_device_leaves_others_their_turn() {
    let (el2, mut service) = started(&Rc::default());
    for _ in 0..8 {
        el2.borrow_mut().post(1);
        el2.borrow_mut().post(0);
    }
    el2.borrow_mut().post(2);
    service.take_told().unwrap();
    assert!(service.serve(0));
    let taken: Vec<u16> = el2
        .borrow()
        .devices
        .iter()
        .map(|one| one.queues.last().unwrap().index())
        .collect();
    assert_eq!(
        taken,
        [2, 4, 1],
        "a quota each: a frame to one other port counts as two"
    );
}

#[test]
fn a_network_says_that_its_link_is_up() {
    let (el2, _) = started(&Rc::default());
    let el2 = el2.borrow();
    let config = |device: usize| {
        el2.devices[device]
            .memory
            .bytes_of(page::BACKEND_CONFIG as u64, 8)
    };
    assert_eq!(config(0), [2, 0, 0, 0, 0, 2, 1, 0]);
    assert_eq!(el2.devices[0].word(page::GENERATION), 2);
    assert_eq!(
        el2.devices[1].word(page::GENERATION),
        0,
        "the disk's is the plan's"
    );
}

/// A window whose page is written later is found when the backend wakes.
#[test]
fn a_device_may_come_late() {
    let el2 = RefCell::new(El2::new());
    let memory = el2.borrow().devices[1].memory.clone();
    memory.store32(page::MAGIC as u64, 0).unwrap();
    let mut service = el2.borrow().service(&Rc::default());
    run(&mut service, &el2);
    run_awake(&mut service, &el2);
    assert!(!el2.borrow().is_served());
    memory
        .store32(page::MAGIC as u64, page::MAGIC_VALUE)
        .unwrap();
    let interrupt = tell(&el2.borrow().page, 63);
    assert!(interrupt, "it sleeps");
    el2.borrow_mut().interrupt = true;
    run_awake(&mut service, &el2);
    assert!(el2.borrow().is_served());
}

/// Once the backend is ready for a session, it leaves the rings and slots of the older one alone.
#[test]
fn what_is_let_go_of_is_not_written() {
    let (el2, mut service) = started(&Rc::default());
    for device in 0..3 {
        for _ in 0..3 {
            let queue = &mut el2.borrow_mut().devices[device].queues[0];
            queue.add(&[], &[1600]).unwrap();
        }
    }
    let (port, disk) = (0, 1);
    el2.borrow_mut().reset(port);
    el2.borrow_mut().reset(disk);
    service.take_told().unwrap();
    while service.serve(0) {}
    let old = |device: usize| {
        let memory = el2.borrow().devices[device].memory.clone();
        memory.bytes_of(0x1000, memory.bytes() - 0x1000)
    };
    let before = [old(port), old(disk)];
    el2.borrow_mut().post(2);
    for index in [0, 5, 63] {
        tell(&el2.borrow().page, index);
    }
    service.take_told().unwrap();
    while service.serve(0) {}
    assert!(before == [old(port), old(disk)]);
    let lost = service.switch().counters(1).unwrap().lost(Lost::Down);
    assert_eq!(lost, 1);
}

/// A new life of the backend does not go on in the rings of an old one.
#[test]
fn a_backend_that_starts_again_asks_for_new_sessions() {
    let (el2, mut service) = started(&Rc::default());
    el2.borrow_mut().post(0);
    el2.borrow_mut().post(1);
    run_awake(&mut service, &el2);
    let mut service = el2.borrow().service(&Rc::default());
    run(&mut service, &el2);
    el2.borrow_mut().interrupt = true;
    run_awake(&mut service, &el2);
    assert!(el2.borrow().is_served());
    assert!(
        el2.borrow()
            .devices
            .iter()
            .all(|device| device.session == 2)
    );
    el2.borrow_mut().post(1);
    run_awake(&mut service, &el2);
    // One in each life.
    assert_eq!(service.disks()[0].counters().done(), 2);
}

/// What devices have done is counted through lives, and is said once for each session in which there was something.
#[test]
fn counters_outlive_a_life_and_are_due_when_a_session_has_ended() {
    let (el2, mut service) = started(&Rc::default());
    assert_eq!(service.take_ended(), Units::default(), "nothing was done");
    el2.borrow_mut().post(0);
    el2.borrow_mut().post(1);
    el2.borrow_mut().post(1);
    run_awake(&mut service, &el2);
    assert_eq!(service.take_ended(), Units::default(), "both are in use");
    for device in 0..2 {
        el2.borrow_mut().reset(device);
    }
    run_awake(&mut service, &el2);
    // Device 0 is port 1.
    let both = Units { ports: 2, disks: 1 };
    assert_eq!(service.take_ended(), both);
    assert_eq!(service.take_ended(), Units::default());
    el2.borrow_mut().reset(1);
    run_awake(&mut service, &el2);
    assert_eq!(
        service.take_ended(),
        Units::default(),
        "nothing more was done"
    );
    // A life without a word ends, and the next one has what it has counted.
    let flushes = |service: &Service| service.disks()[0].counters().flushes;
    let sent = |service: &Service| service.switch().counters(1).unwrap().from_guest.frames;
    // Nobody at the other port had a buffer for the frame.
    let lost = |service: &Service| service.switch().counters(0).unwrap().lost(Lost::NoBuffer);
    let (disk, port) = (flushes(&service), sent(&service));
    assert_eq!((disk, port, lost(&service)), (2, 1, 1));
    let mut service = el2.borrow().service(&Rc::default());
    run(&mut service, &el2);
    el2.borrow_mut().interrupt = true;
    run_awake(&mut service, &el2);
    assert_eq!((flushes(&service), sent(&service)), (disk, port));
    assert_eq!(lost(&service), 1);
    el2.borrow_mut().post(0);
    el2.borrow_mut().post(1);
    run_awake(&mut service, &el2);
    assert_eq!((flushes(&service), sent(&service)), (disk + 1, port + 1));
}

#[test]
fn what_cannot_be_served_is_refused_with_a_reason() {
    let refusal = |at: usize, device: usize, value: &[u8]| {
        let el2 = RefCell::new(El2::new());
        let memory = el2.borrow().devices[device].memory.clone();
        memory.write(at as u64, value).unwrap();
        let mut service = el2.borrow().service(&Rc::default());
        service.take_told().unwrap();
        while service.serve(0) {}
        let index = memory.load32(page::INDEX as u64).unwrap();
        let word = memory.load32(page::REFUSAL as u64).unwrap();
        if word != 0 {
            assert_eq!(memory.load32(page::READY as u64), Ok(0));
            assert!(index >= 64 || service.take_rings() >> index & 1 == 1);
        }
        word
    };
    assert_eq!(refusal(0x700, 0, &[0]), 0);
    assert_eq!(refusal(page::DEVICE_ID, 0, &[4]), Refusal::Type as u32);
    assert_eq!(refusal(page::OFFERED, 0, &[1]), Refusal::Features as u32);
    assert_eq!(
        refusal(page::OFFERED + 6, 0, &[4]),
        Refusal::Features as u32
    );
    assert_eq!(refusal(page::UNIT, 0, &[2]), Refusal::Unit as u32);
    assert_eq!(refusal(page::UNIT, 1, &[1]), Refusal::Unit as u32);
    assert_eq!(refusal(page::INDEX, 0, &[64]), Refusal::Unit as u32);
    assert_eq!(refusal(page::WINDOW + 3, 0, &[1]), Refusal::Size as u32);
    assert_eq!(refusal(page::CONFIG, 1, &[9]), Refusal::Size as u32);
    assert_eq!(refusal(page::CONFIG + 5, 0, &[3]), Refusal::Config as u32);
    // Two windows for one port.
    assert_eq!(refusal(page::UNIT, 2, &[1]), Refusal::Unit as u32);
}
