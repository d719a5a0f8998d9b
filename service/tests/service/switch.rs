//! The switch against a model that knows who must get each frame, under random traffic, buffers, resets and hostile bytes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bulkhead_service::memory::Memory;
use bulkhead_service::queue::Queue;
use bulkhead_service::session::Live;
use bulkhead_service::switch::{Lost, Mac, PlanError, PortPlan, Refused, STATIONS, Switch};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::el2::Driver;
use crate::memory::TestMemory;

const SIZE: u16 = 32;
const AGE: u64 = 10;
const MERGE: u64 = 1 << 15;
const RINGS: [u64; 2] = [0, 0x800];
const SLOTS: [u64; 2] = [0x1000, 0x1000 + SIZE as u64 * 2048];

const fn plan(last: u8, vlan: u16, mtu: u16, uplink: bool) -> PortPlan {
    let mac = Mac([0x52, 0x54, 0, 0, 0, last]);
    PortPlan {
        mac,
        vlan,
        mtu,
        uplink,
    }
}

/// Two VLANs; ports 1 and 4 merge no buffers.
const PLANS: [PortPlan; 7] = [
    plan(0, 7, 1500, false),
    plan(1, 7, 1500, false),
    plan(2, 7, 100, false),
    plan(3, 7, 1500, true),
    plan(4, 7, 1500, true),
    plan(5, 8, 1500, false),
    plan(6, 8, 1500, false),
];
const MERGES: [bool; 7] = [true, false, true, true, false, true, true];

struct Port {
    memory: TestMemory,
    receive: Driver,
    transmit: Driver,
}

struct World {
    switch: Switch<TestMemory, 8>,
    ports: Vec<Option<Port>>,
}

impl World {
    fn new(plans: &[PortPlan]) -> Self {
        let mut world = Self {
            switch: Switch::new(plans, AGE).unwrap(),
            ports: plans.iter().map(|_| None).collect(),
        };
        for (port, merges) in MERGES.into_iter().enumerate().take(plans.len()) {
            world.up(port, merges);
        }
        world
    }

    fn up(&mut self, port: usize, merges: bool) {
        let memory = TestMemory::new(0x1000 + 2 * SIZE as usize * 2048);
        let [receive, transmit] = [0, 1].map(|n| Driver::new(&memory, RINGS[n], SIZE, SLOTS[n]));
        let mut queues: [Option<Queue>; 8] = Default::default();
        for (queue, at) in queues.iter_mut().zip(RINGS) {
            *queue = Queue::new(&memory, at, SIZE.into());
        }
        let live = Live {
            features: if merges { MERGE } else { 0 },
            queues,
        };
        self.switch.up(port, memory.clone(), live);
        self.ports[port] = Some(Port {
            memory,
            receive,
            transmit,
        });
    }

    fn port(&mut self, port: usize) -> &mut Port {
        self.ports[port].as_mut().unwrap()
    }

    fn send(&mut self, port: usize, frame: &[u8]) -> bool {
        let (first, second) = frame.split_at(frame.len().min(17));
        self.port(port)
            .transmit
            .add(&[first, second], &[])
            .is_some()
    }

    fn post(&mut self, port: usize, bytes: u32) -> bool {
        self.port(port).receive.add(&[], &[bytes]).is_some()
    }

    /// The frames that a guest has got, with their headers, as its driver puts them together.
    fn take(&mut self, port: usize) -> Vec<Vec<u8>> {
        let mut frames: Vec<Vec<u8>> = Vec::new();
        let mut left = 0;
        for back in self.port(port).receive.take() {
            let bytes = &back.written[..back.bytes as usize];
            if left == 0 {
                left = u16::from_le_bytes([bytes[10], bytes[11]]);
                assert!(bytes[..10].iter().all(|byte| *byte == 0) && left > 0);
                frames.push(bytes[12..].to_vec());
            } else {
                frames.last_mut().unwrap().extend(bytes);
            }
            left -= 1;
        }
        assert_eq!(left, 0, "half a frame");
        frames
    }
}

fn frame(to: Mac, source: Mac, kind: [u8; 2], bytes: usize, id: u32) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend(to.0);
    frame.extend(source.0);
    frame.extend(kind);
    frame.extend(id.to_le_bytes());
    frame.resize(12 + bytes.max(14), id as u8);
    frame.truncate(12 + bytes);
    frame
}

#[derive(Clone, Debug)]
enum Event {
    Send(usize, Sent),
    Post(usize, u32),
    Serve(usize, u32),
    Take(usize),
    Down(usize),
    Up(usize),
    Wait(u64),
}

#[derive(Clone, Debug)]
struct Sent {
    to: Mac,
    source: Option<Mac>,
    kind: [u8; 2],
    bytes: usize,
    flags: u8,
    segments: u8,
}

fn macs() -> impl Strategy<Value = Mac> {
    prop_oneof![
        6 => (0..7u8).prop_map(|last| Mac([0x52, 0x54, 0, 0, 0, last])),
        3 => (0..4u8).prop_map(|last| Mac([2, 0, 0, 0, 9, last])),
        2 => Just(Mac::BROADCAST),
        1 => Just(Mac([0x33, 0x33, 0, 0, 0, 1])),
        1 => (0x0e..0x11u8).prop_map(|last| Mac([1, 0x80, 0xc2, 0, 0, last])),
    ]
}

fn sent() -> impl Strategy<Value = Sent> {
    let kind = prop_oneof![
        8 => Just([8, 0]),
        1 => Just([0x81, 0]),
        1 => Just([0x88, 0xa8]),
    ];
    let bytes =
        prop_oneof![4 => 18..100usize, 2 => 110..117usize, 1 => 0..16usize, 2 => 1400..1520usize];
    let flags = prop_oneof![9 => Just(0u8), 1 => any::<u8>()];
    let segments = prop_oneof![12 => Just(0u8), 1 => any::<u8>()];
    let source = prop_oneof![2 => Just(None), 1 => macs().prop_map(Some)];
    (macs(), source, kind, bytes, flags, segments).prop_map(
        |(to, source, kind, bytes, flags, segments)| Sent {
            to,
            source,
            kind,
            bytes,
            flags,
            segments,
        },
    )
}

fn events() -> impl Strategy<Value = Event> {
    let port = || 0..7usize;
    let bytes = prop_oneof![
        4 => Just(1600u32), 2 => 12..200u32, 1 => 0..14u32, 1 => Just(1526u32), 1 => Just(126u32)
    ];
    prop_oneof![
        8 => (port(), sent()).prop_map(|(port, sent)| Event::Send(port, sent)),
        8 => (port(), bytes).prop_map(|(port, bytes)| Event::Post(port, bytes)),
        8 => (port(), 0..6u32).prop_map(|(port, quota)| Event::Serve(port, quota)),
        3 => port().prop_map(Event::Take),
        1 => port().prop_map(Event::Down),
        1 => port().prop_map(Event::Up),
        1 => (0..15u64).prop_map(Event::Wait),
    ]
}

#[derive(Default)]
struct ModelPort {
    up: bool,
    sent: VecDeque<Vec<u8>>,
    buffers: VecDeque<u32>,
    gets: Vec<Vec<u8>>,
    /// Frames and bytes from the guest, frames and bytes to it.
    traffic: [u64; 4],
    refused: BTreeMap<usize, u64>,
    lost: BTreeMap<usize, u64>,
}

/// What must become of each frame.
struct Model {
    ports: Vec<ModelPort>,
    stations: BTreeMap<(u16, Mac), (usize, u64)>,
    now: u64,
}

impl Model {
    fn serve(&mut self, port: usize, quota: u32) -> bool {
        let mut work = 0;
        while work < quota {
            let up = self.ports[port].up;
            let Some(frame) = self.ports[port].sent.pop_front().filter(|_| up) else {
                return false;
            };
            work += 1 + self.forward(port, &frame);
        }
        true
    }

    fn forward(&mut self, port: usize, sent: &[u8]) -> u32 {
        let frame = sent.get(12..).unwrap_or(&[]);
        let traffic = &mut self.ports[port].traffic;
        traffic[0] += 1;
        traffic[1] += frame.len() as u64;
        match self.targets(port, sent, frame) {
            Ok(targets) => {
                let count = targets.len() as u32;
                for target in targets {
                    if let Err(why) = self.deliver(target, frame) {
                        *self.ports[target].lost.entry(why as usize).or_default() += 1;
                    }
                }
                count
            }
            Err(why) => {
                *self.ports[port].refused.entry(why as usize).or_default() += 1;
                0
            }
        }
    }

    fn targets(&mut self, port: usize, sent: &[u8], frame: &[u8]) -> Result<Vec<usize>, Refused> {
        let plan = PLANS[port];
        if frame.len() < 14 {
            return Err(Refused::Runt);
        }
        if frame.len() > usize::from(plan.mtu) + 14 {
            return Err(Refused::Giant);
        }
        if sent[0] & 1 != 0 || sent[1] != 0 {
            return Err(Refused::Offload);
        }
        let mac = |at: usize| Mac(frame[at..at + 6].try_into().unwrap());
        let (to, source) = (mac(0), mac(6));
        if matches!(frame[12..14], [0x81, 0] | [0x88, 0xa8]) {
            return Err(Refused::Tagged);
        }
        if to.0[..5] == [1, 0x80, 0xc2, 0, 0] && to.0[5] < 16 {
            return Err(Refused::Reserved);
        }
        let planned = |mac| PLANS.iter().position(|plan| plan.mac == mac);
        let now = self.now;
        let fresh = |(at, seen): (usize, u64)| (now - seen < AGE).then_some(at);
        if source != plan.mac {
            let known = self.stations.get(&(plan.vlan, source)).copied();
            let elsewhere = known.and_then(fresh).is_some_and(|at| at != port);
            if !plan.uplink || planned(source).is_some() || source.0[0] & 1 != 0 || elsewhere {
                return Err(Refused::Source);
            }
            self.stations.insert((plan.vlan, source), (port, now));
        }
        let mut targets: Vec<usize> = (0..7)
            .filter(|other| PLANS[*other].vlan == plan.vlan && *other != port)
            .collect();
        if to.0[0] & 1 == 0 {
            let known = self.stations.get(&(plan.vlan, to)).copied();
            let behind = planned(to).or(known.and_then(fresh));
            targets.retain(|other| behind.map_or(PLANS[*other].uplink, |at| at == *other));
        }
        if targets.is_empty() {
            return Err(Refused::Nowhere);
        }
        Ok(targets)
    }

    fn deliver(&mut self, to: usize, frame: &[u8]) -> Result<(), Lost> {
        let port = &mut self.ports[to];
        if !port.up {
            return Err(Lost::Down);
        }
        let most = if MERGES[to] { 16 } else { 1 };
        let mut space = 0;
        let mut count = 0;
        while space < frame.len() as u32 + 12 {
            if count == most {
                return Err(Lost::Small);
            }
            let buffer = *port.buffers.get(count).ok_or(Lost::NoBuffer)?;
            if buffer < 12 {
                return Err(Lost::Small);
            }
            space += buffer;
            count += 1;
        }
        port.buffers.drain(..count);
        port.traffic[2] += 1;
        port.traffic[3] += frame.len() as u64;
        port.gets.push(frame.to_vec());
        Ok(())
    }
}

const REFUSED: [Refused; 7] = [
    Refused::Runt,
    Refused::Giant,
    Refused::Offload,
    Refused::Tagged,
    Refused::Source,
    Refused::Reserved,
    Refused::Nowhere,
];
const LOST: [Lost; 3] = [Lost::Down, Lost::NoBuffer, Lost::Small];

/// What holds for every frame that a guest has got, whatever the model says.
fn judge(
    to: usize,
    frame: &[u8],
    origin: &BTreeMap<u32, usize>,
    seen: &mut BTreeSet<(usize, u32)>,
) {
    let source = Mac(frame[6..12].try_into().unwrap());
    let owner = PLANS.iter().position(|plan| plan.mac == source);
    if frame.len() >= 18 {
        let id = u32::from_le_bytes(frame[14..18].try_into().unwrap());
        let from = origin[&id];
        assert_eq!(PLANS[from].vlan, PLANS[to].vlan, "from another VLAN");
        assert_ne!(from, to, "back to who sent it");
        assert!(owner.is_none_or(|owner| owner == from), "another's address");
        assert!(
            owner.is_some() || PLANS[from].uplink,
            "an address of nobody"
        );
        assert!(seen.insert((to, id)), "twice");
    }
    assert!(!source.is_group());
}

fn check_counters(world: &World, model: &Model) {
    for (number, port) in model.ports.iter().enumerate() {
        let counters = world.switch.counters(number).unwrap();
        let (from, to) = (counters.from_guest, counters.to_guest);
        assert_eq!([from.frames, from.bytes, to.frames, to.bytes], port.traffic);
        for why in REFUSED {
            let count = port.refused.get(&(why as usize)).copied();
            assert_eq!(
                counters.refused(why),
                count.unwrap_or(0),
                "{number}: {why:?}"
            );
        }
        for why in LOST {
            let count = port.lost.get(&(why as usize)).copied();
            assert_eq!(counters.lost(why), count.unwrap_or(0), "{number}: {why:?}");
        }
    }
}

fn against_the_model(events: Vec<Event>) {
    let mut world = World::new(&PLANS);
    let mut model = Model {
        ports: (0..7).map(|_| ModelPort::default()).collect(),
        stations: BTreeMap::new(),
        now: 0,
    };
    model.ports.iter_mut().for_each(|port| port.up = true);
    let mut origin = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let ends = (0..7).flat_map(|port| [Event::Serve(port, 1000), Event::Take(port)]);
    let ends = ends.chain((0..7).map(Event::Take));
    for event in events.into_iter().chain(ends) {
        match event {
            Event::Send(port, sent) if model.ports[port].up => {
                let id = origin.len() as u32;
                origin.insert(id, port);
                let source = sent.source.unwrap_or(PLANS[port].mac);
                let mut frame = frame(sent.to, source, sent.kind, sent.bytes, id);
                frame[..2].copy_from_slice(&[sent.flags, sent.segments]);
                if world.send(port, &frame) {
                    model.ports[port].sent.push_back(frame);
                }
            }
            Event::Post(port, bytes) if model.ports[port].up && world.post(port, bytes) => {
                model.ports[port].buffers.push_back(bytes);
            }
            Event::Serve(port, quota) => {
                let served = world.switch.serve(port, quota, model.now);
                assert_eq!((served.more, served.broken), (model.serve(port, quota), 0));
            }
            Event::Take(port) if model.ports[port].up => {
                let frames = world.take(port);
                for frame in &frames {
                    judge(port, frame, &origin, &mut seen);
                }
                assert!(frames == std::mem::take(&mut model.ports[port].gets));
                world.port(port).transmit.take();
            }
            Event::Down(port) => {
                world.switch.down(port);
                let port = &mut model.ports[port];
                port.up = false;
                port.sent.clear();
            }
            Event::Up(port) if !model.ports[port].up => {
                world.up(port, MERGES[port]);
                let port = &mut model.ports[port];
                port.up = true;
                port.buffers.clear();
                port.gets.clear();
            }
            Event::Wait(ticks) => model.now += ticks,
            _ => {}
        }
    }
    check_counters(&world, &model);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn each_frame_goes_where_it_must_once_or_is_counted(events in vec(events(), 0..200)) {
        against_the_model(events);
    }

    #[test]
    fn frames_of_any_bytes_are_counted(
        frames in vec(vec(prop_oneof![Just(0u8), Just(1), Just(0x52), any::<u8>()], 0..80), 1..10),
    ) {
        let mut world = World::new(&PLANS);
        for port in 0..7 {
            (0..20).for_each(|_| { world.post(port, 100); });
        }
        let count = frames.iter().filter(|frame| !frame.is_empty() && world.send(3, frame)).count();
        let served = world.switch.serve(3, 1000, 0);
        prop_assert!(!served.more && served.broken == 0);
        let counters = world.switch.counters(3).unwrap();
        prop_assert_eq!(counters.from_guest.frames, count as u64);
        let refused: u64 = REFUSED.iter().map(|why| counters.refused(*why)).sum();
        let got = (0..7).map(|port| world.take(port).len() as u64).max().unwrap();
        prop_assert!(refused + got <= count as u64);
    }
}

#[test]
fn a_port_without_buffers_loses_its_own_frames_only() {
    let mut world = World::new(&PLANS);
    (0..20).for_each(|_| assert!(world.post(1, 1600)));
    for id in 0..10 {
        world.send(0, &frame(Mac::BROADCAST, PLANS[0].mac, [8, 0], 60, id));
    }
    let served = world.switch.serve(0, 1000, 0);
    assert!(!served.more);
    assert_eq!(world.take(1).len(), 10);
    assert_eq!(world.switch.counters(2).unwrap().lost(Lost::NoBuffer), 10);
    assert_eq!(world.switch.counters(5).unwrap().lost(Lost::NoBuffer), 0);
    // EL2 is told of the sender and of who has got something.
    assert_eq!(served.ring, 0b11);
}

#[test]
fn who_sends_to_many_has_fewer_turns() {
    let mut world = World::new(&PLANS);
    for id in 0..10 {
        world.send(0, &frame(Mac::BROADCAST, PLANS[0].mac, [8, 0], 60, id));
        world.send(5, &frame(PLANS[6].mac, PLANS[5].mac, [8, 0], 60, id));
    }
    assert!(world.switch.serve(0, 10, 0).more);
    assert!(world.switch.serve(5, 10, 0).more);
    assert_eq!(world.switch.counters(0).unwrap().from_guest.frames, 2);
    assert_eq!(world.switch.counters(5).unwrap().from_guest.frames, 5);
}

#[test]
fn a_guest_with_tiny_buffers_does_not_make_frames_expensive() {
    let mut world = World::new(&PLANS);
    (0..32).for_each(|_| assert!(world.post(0, 13)));
    world.send(1, &frame(PLANS[0].mac, PLANS[1].mac, [8, 0], 300, 0));
    world.send(
        1,
        &frame(PLANS[0].mac, PLANS[1].mac, [8, 0], 13 * 16 - 12, 1),
    );
    world.switch.serve(1, 1000, 0);
    assert_eq!(world.switch.counters(0).unwrap().lost(Lost::Small), 1);
    assert_eq!(world.take(0).len(), 1, "those that fit come");
}

#[test]
fn a_flood_of_addresses_pushes_none_out_and_old_ones_make_place() {
    let mut world = World::new(&PLANS);
    let station = |number: u16| {
        let [high, low] = number.to_be_bytes();
        Mac([2, 0, 0, 1, high, low])
    };
    let mut now = 0;
    let send = |world: &mut World, port: usize, source: Mac, to: Mac, now| {
        world.send(port, &frame(to, source, [8, 0], 60, 0));
        world.switch.serve(port, 1000, now);
        world.port(port).transmit.take();
    };
    for number in 0..600 {
        now = u64::from(number >= STATIONS as u16);
        send(&mut world, 3, station(number), Mac::BROADCAST, now);
    }
    let refused =
        |world: &World, port: usize, why| world.switch.counters(port).unwrap().refused(why);
    // The first are known to be behind port 3; the last are not, and may be anywhere.
    send(&mut world, 4, station(0), Mac::BROADCAST, now);
    assert_eq!(refused(&world, 4, Refused::Source), 1);
    send(&mut world, 4, station(599), Mac::BROADCAST, now);
    assert_eq!(refused(&world, 4, Refused::Source), 1);
    // Later there is a place for it.
    now += AGE;
    send(&mut world, 4, station(599), Mac::BROADCAST, now);
    send(&mut world, 3, station(599), Mac::BROADCAST, now);
    assert_eq!(refused(&world, 3, Refused::Source), 1);
}

#[test]
fn a_switch_that_cannot_be_is_refused() {
    let new = |plans: &[PortPlan]| Switch::<TestMemory, 3>::new(plans, AGE).err();
    assert_eq!(new(&PLANS[..3]), None);
    assert_eq!(new(&PLANS[..4]), Some(PlanError::Ports));
    assert_eq!(
        new(&[PLANS[0], plan(0, 9, 1500, false)]),
        Some(PlanError::Address)
    );
    let group = PortPlan {
        mac: Mac::BROADCAST,
        ..PLANS[0]
    };
    assert_eq!(new(&[group]), Some(PlanError::Address));
}

/// A queue that is broken ends the service of its port, and of no other.
#[test]
fn a_broken_ring_is_said_and_harms_its_port_only() {
    let mut world = World::new(&PLANS);
    assert!(world.post(2, 1600));
    let port = world.port(1);
    port.memory
        .store16(port.receive.ring.available + 2, 0x7000)
        .unwrap();
    world.send(0, &frame(Mac::BROADCAST, PLANS[0].mac, [8, 0], 60, 0));
    let served = world.switch.serve(0, 100, 0);
    assert_eq!(served.broken, 0b10);
    assert_eq!(world.switch.counters(1).unwrap().lost(Lost::Down), 1);
    assert_eq!(world.take(2).len(), 1);
    let port = world.port(0);
    port.memory
        .store16(port.transmit.ring.available + 2, 0x7000)
        .unwrap();
    assert_eq!(world.switch.serve(0, 100, 0).broken, 1);
    assert!(!world.switch.arm(0).unwrap());
}
