//! What the control port promises its driver and the manager behind it.

use core::cell::Cell;
use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;
use zerocopy::FromBytes;

use bulkhead_abi::control::{Message, PORT_NAME};
use bulkhead_abi::device::ring::{self, INDEX, NEXT, WRITE};

use super::parts::*;
use super::port_world::*;
use crate::virtio::guest_ring::{Broken, Features, GuestRing, Setup};
use crate::virtio::memory::{Access, At, Memory, Space};
use crate::virtio::ports::{Look, Ports};
use crate::virtio::queue::Budget;
use crate::virtio::requests::Release;
use crate::virtio::round::SLICE;

#[test]
fn what_follows_a_message_is_copied_behind_it() {
    let mut world = World::new(false);
    world.open();
    world.boss.data = 100;
    let first = world.sides[MESSAGES].buffer(world.sides[MESSAGES].index);
    world.add(MESSAGES, &[50, 100, 78], None);
    world.ask(1, &[48]);
    world.settle().expect("no rule was broken");
    let bytes = world.sides[MESSAGES].take(&world.ram).expect("an answer");
    assert_eq!(bytes.len(), 228);
    let found = Message::read_from_prefix(&bytes).expect("a message").0;
    assert_eq!((found.number, found.data), (1, 100));
    let second = first + 50 + 8;
    let third = second + 100 + 8;
    let copied = [(0, reached(second + 78), 22), (22, reached(third), 78)];
    assert_eq!(world.boss.copied, copied);
    // Who has no room for all of it breaks the rules.
    world.add(MESSAGES, &[128, 99], None);
    world.ask(2, &[48]);
    assert_eq!((0..64).find_map(|_| world.slice(SLICE).err()), Some(Broken));
}

#[test]
fn ports_are_announced_as_the_driver_says_that_it_is_ready() {
    let mut world = World::new(true);
    let adds = [announcement(0, 1, ""), announcement(1, 1, "")];
    assert_eq!(world.say(0, DEVICE_READY, 1), adds);
    let console = [announcement(0, 4, ""), announcement(0, 6, "")];
    assert_eq!(world.say(0, PORT_READY, 1), console);
    let control = [announcement(1, 7, PORT_NAME), announcement(1, 6, "")];
    assert_eq!(world.say(1, PORT_READY, 1), control);
    assert_eq!(
        world.say(2, PORT_READY, 1),
        Vec::<Vec<u8>>::new(),
        "no port"
    );
    assert_eq!(world.say(1, 99, 1), Vec::<Vec<u8>>::new(), "no event");
    let mut world = World::new(false);
    assert_eq!(world.say(0, DEVICE_READY, 1), adds[1..]);
    assert_eq!(
        world.say(0, PORT_READY, 1),
        Vec::<Vec<u8>>::new(),
        "no port 0"
    );
    assert_eq!(world.say(1, PORT_READY, 1), control);
}

#[test]
fn nothing_is_taken_before_the_port_is_open_and_nothing_is_left_when_it_was_closed() {
    let mut world = World::new(false);
    world.say(0, DEVICE_READY, 1);
    world.say(1, PORT_READY, 1);
    world.boss.events = 1;
    world.add(MESSAGES, &[128], None);
    world.ask(1, &[48]);
    world.settle().unwrap();
    assert_eq!((world.messages(), world.boss.requests.len()), (vec![], 0));
    world.say(1, PORT_OPEN, 1);
    world.settle().unwrap();
    assert_eq!(world.messages(), [1]);
    // An answer that comes later, and one for which there is no buffer.
    for number in [3, 4] {
        world.ask(number, &[48]);
        world.boss.ready = true;
        world.service = true;
        world.settle().unwrap();
        world.say(1, PORT_OPEN, 0);
        world.say(1, PORT_OPEN, 1);
        world.add(MESSAGES, &[128], None);
        world.ask(5, &[48]);
        world.settle().unwrap();
        assert_eq!(world.messages(), [5], "after {number}");
        while world.sides[REQUESTS].take(&world.ram).is_some() {}
    }
    assert_eq!(world.boss.opened, 3);
}

#[test]
fn a_chain_is_a_request_whatever_pieces_it_has() {
    let mut world = World::new(false);
    world.open();
    for (lengths, bytes) in [
        (&[48][..], 48),
        (&[1, 47], 48),
        (&[16, 8, 0, 24], 48),
        (&[40, 8], 48),
        (&[47], 47),
        (&[49], 49),
        (&[20, 20], 40),
        (&[0], 0),
        (&[48, 1], 49),
        // No more than four are looked at.
        (&[12, 12, 12, 11, 1], 47),
        (&[0x1_0000], 0x1_0000),
    ] {
        let number = 7;
        if lengths == [0x1_0000] {
            world.add(REQUESTS, lengths, Some(&[0; 48]));
        } else {
            world.ask(number, lengths);
        }
        world.add(MESSAGES, &[128], None);
        world.settle().unwrap();
        let (seen, length) = world.boss.requests.pop().expect("taken");
        assert_eq!(length, bytes, "{lengths:?}");
        if bytes == 48 {
            assert_eq!(seen, request_of(number), "{lengths:?}");
        }
        assert_eq!(world.messages().len(), 1);
        while world.sides[REQUESTS].take(&world.ram).is_some() {}
    }
}

#[test]
fn a_buffer_has_room_for_a_message_or_the_device_stops() {
    for (lengths, fits) in [
        (&[128][..], true),
        (&[4096], true),
        (&[64, 64], true),
        (&[1, 127], true),
        (&[127], false),
        (&[64, 63], false),
        (&[32, 32, 32, 31, 1], false),
    ] {
        let mut world = World::new(false);
        world.open();
        world.add(MESSAGES, lengths, None);
        world.ask(1, &[48]);
        assert_eq!(world.settle().is_ok(), fits, "{lengths:?}");
        if fits {
            assert_eq!(world.messages(), [1]);
        }
    }
}

#[test]
fn a_slice_handles_one_request_and_others_have_theirs() {
    let mut world = World::new(false);
    world.open();
    for number in [1, 2, 4, 5] {
        world.ask(number, &[48]);
    }
    for _ in 0..4 {
        world.add(MESSAGES, &[128], None);
    }
    let mut handled = Vec::new();
    while world.service {
        let before = world.boss.requests.len();
        world.slice(SLICE).unwrap();
        handled.push(world.boss.requests.len() - before);
    }
    assert!(handled.iter().all(|count| *count <= 1), "{handled:?}");
    assert_eq!(world.messages(), [1, 2, 4, 5]);
}

#[test]
fn an_exit_answers_without_the_service_thread() {
    let mut world = World::new(false);
    world.open();
    world.at_exit = true;
    for _ in 0..3 {
        world.add(MESSAGES, &[128], None);
    }
    world.boss.events = 1;
    for number in [1, 2] {
        world.ask(number, &[48]);
        assert!(!world.service, "there is nothing left for it");
    }
    assert_eq!(world.messages(), [0, 1, 2]);
    assert!(world.interrupt);
    // What takes longer is the thread's, and so is what was told of by another queue.
    world.ask(3, &[48]);
    assert_eq!(world.messages(), []);
    world.boss.ready = true;
    world.service = true;
    world.add(MESSAGES, &[128], None);
    world.settle().unwrap();
    assert_eq!(world.messages(), [3]);
    while world.sides[REQUESTS].take(&world.ram).is_some() {}
    let said = [1u8, 0, 0, 0, 6, 0, 0, 0];
    world.add(SAID, &[8], Some(&said));
    assert!(world.service, "the port is closed");
    world.ask(4, &[48]);
    assert_eq!(
        world.boss.requests.len(),
        4,
        "the port is still open for an exit"
    );
}

/// The index of a queue as a driver changes it that has nothing better to do: at each look it is another one.
struct Flips<'a> {
    ram: &'a Ram,
    at: At,
    looks: Cell<u32>,
}

impl Memory for Flips<'_> {
    fn load8(&self, at: At) -> u8 {
        self.ram.load8(at)
    }
    fn load16(&self, at: At) -> u16 {
        if at != self.at {
            return self.ram.load16(at);
        }
        self.looks.set(self.looks.get() + 1);
        self.ram
            .load16(at)
            .wrapping_add(1 - self.looks.get() as u16 % 2)
    }
    fn load32(&self, at: At) -> u32 {
        self.ram.load32(at)
    }
    fn load64(&self, at: At) -> u64 {
        self.ram.load64(at)
    }
    fn store8(&self, at: At, value: u8) {
        self.ram.store8(at, value);
    }
    fn store16(&self, at: At, value: u16) {
        self.ram.store16(at, value);
    }
    fn store32(&self, at: At, value: u32) {
        self.ram.store32(at, value);
    }
    fn store64(&self, at: At, value: u64) {
        self.ram.store64(at, value);
    }
    fn copy(&self, from: At, to: At, bytes: u64) {
        self.ram.copy(from, to, bytes);
    }
}

#[test]
fn a_queue_that_is_another_at_each_look_ends_the_slice() {
    for queue in [HEARD, SAID, MESSAGES, REQUESTS] {
        for look in [Look::All, Look::Messages] {
            let mut world = World::new(false);
            world.open();
            // Something is to be told, and to be announced.
            world.say(0, DEVICE_READY, u16::from(queue == HEARD));
            world.say(1, PORT_OPEN, 1);
            world.boss.events = u64::from(queue == MESSAGES);
            let memory = Flips {
                ram: &world.ram,
                at: At::new(reached(world.sides[queue].available() + INDEX)),
                looks: Cell::new(0),
            };
            let mut budget = SLICE;
            let guest = (&memory, &Vm);
            world.ports.slice(look, guest, &mut world.boss, &mut budget);
            assert!(memory.looks.get() < 64, "{queue}: {}", memory.looks.get());
        }
    }
}

/// The ring of a side, of a driver with EVENT_IDX.
fn ring_of(side: &Side) -> GuestRing {
    let setup = Setup {
        size: SIZE,
        table: side.base(),
        available: side.available(),
        used: side.used_at(),
    };
    let features = Features {
        event_idx: true,
        ..Features::default()
    };
    GuestRing::new(&setup, features, &Vm).expect("it can be there")
}

#[test]
fn an_only_buffer_lies_in_one_region_to_its_last_byte() {
    let (ram, side) = (Ram::new(), Side::new(MESSAGES));
    let ring = ring_of(&side);
    let start = side.buffer(0);
    let (_, behind) = Vm.reach(start, Access::Write).expect("RAM");
    let look = |len: u64, flags: u16, access| {
        put(&ram, side.base(), &start.to_le_bytes());
        put(&ram, side.base() + 8, &(len as u32).to_le_bytes());
        put(&ram, side.base() + 12, &flags.to_le_bytes());
        let found = ring.only_buffer(0, access, &ram, &Vm);
        found.map(|(at, len)| (at.address(), u64::from(len)))
    };
    let whole = Some((reached(start), behind));
    assert_eq!(look(behind, WRITE, Access::Write), whole);
    assert_eq!(look(behind + 1, WRITE, Access::Write), None);
    assert_eq!(look(behind, 0, Access::Write), None);
    assert_eq!(look(behind, WRITE, Access::Read), None);
    assert_eq!(look(behind, WRITE | NEXT, Access::Write), None);
}

#[test]
fn a_driver_that_is_to_be_silent_stays_so() {
    let (ram, side) = (Ram::new(), Side::new(MESSAGES));
    let mut ring = ring_of(&side);
    for taken in 0..3 * SIZE {
        ring.hush(&ram, &Vm).unwrap();
        let event = ram.get16(reached(side.used_at() + ring::avail_event(SIZE)));
        let left = event.wrapping_sub(taken);
        assert!(left > SIZE / 2 && left <= SIZE, "{left} at {taken}");
        let index = (taken + 1).to_le_bytes();
        put(&ram, side.available() + INDEX, &index);
        assert_eq!(ring.has_next(&ram, &Vm), Ok(true));
        ring.take(&ram, &Vm).unwrap();
    }
}

#[test]
fn nothing_is_touched_of_a_queue_that_was_let_go() {
    let mut world = World::new(false);
    world.open();
    world.add(MESSAGES, &[128], None);
    world.ports.let_go(Release::Queue(5));
    world.ask(1, &[48]);
    world.look(Look::Messages, SLICE).unwrap();
    world.settle().unwrap();
    assert_eq!(world.boss.requests.len(), 0);
    // The queue that is enabled again is another one; the others stay.
    world.sides[REQUESTS] = Side::new(REQUESTS);
    put(&world.ram, world.sides[REQUESTS].base(), &[0; 0x400]);
    assert!(world.ports.start(&world.transport, &Vm));
    world.ask(2, &[48]);
    world.settle().unwrap();
    assert_eq!(world.messages(), [2]);
    world.ports.let_go(Release::All);
    while world.sides[REQUESTS].take(&world.ram).is_some() {}
    world.add(MESSAGES, &[128], None);
    world.ask(4, &[48]);
    world.service = true;
    world.settle().unwrap();
    assert_eq!((world.messages(), world.boss.requests.len()), (vec![], 1));
    assert!(!world.ports.can_tell());
}

#[test]
fn nothing_is_served_once_another_queue_has_broken_a_rule() {
    let mut world = World::new(false);
    world.open();
    assert!(world.ports.can_tell());
    world.ports.stop();
    world.add(MESSAGES, &[128], None);
    world.ask(1, &[48]);
    world.look(Look::Messages, SLICE).unwrap();
    world.settle().unwrap();
    assert_eq!(world.boss.requests.len(), 0);
    assert!(!world.ports.can_tell());
    // A queue that cannot be there, of a device that is driven.
    let mut ports = Ports::new(false);
    let mut sides = [HEARD, SAID, MESSAGES, REQUESTS].map(Side::new);
    sides[REQUESTS].queue = 1 << 20;
    assert!(!ports.start(&set_up(&sides), &Vm));
}

#[derive(Clone, Debug)]
enum Event {
    Ask(Vec<u32>),
    Offer,
    Ready,
    Happens,
    Slice(u32),
    Take,
    Reopen,
}

fn events() -> impl Strategy<Value = Event> {
    let pieces = prop_oneof![Just(vec![48]), Just(vec![8, 40]), Just(vec![5, 20, 23])];
    prop_oneof![
        6 => pieces.prop_map(Event::Ask),
        6 => Just(Event::Offer),
        3 => Just(Event::Ready),
        3 => Just(Event::Happens),
        8 => (1u32..12).prop_map(Event::Slice),
        6 => Just(Event::Take),
        1 => Just(Event::Reopen),
    ]
}

proptest! {
    /// Each request is answered once, in order, and each event is told, whatever comes between, and none of it twice; what was before the port was
    /// opened anew is gone.
    #[test]
    fn each_request_is_answered_once_and_each_event_told(
        all in prop::collection::vec(events(), 1..200),
        at_exit in any::<bool>(),
    ) {
        let mut world = World::new(false);
        world.at_exit = at_exit;
        world.open();
        let (mut number, mut asked, mut told, mut happened) = (0, VecDeque::new(), 0, 0);
        let mut step = |world: &mut World, event: &Event| {
            match event {
                Event::Ask(lengths) if world.sides[REQUESTS].waits.len() < 2 => {
                    number += 1;
                    asked.push_back(number);
                    world.ask(number, lengths);
                }
                Event::Offer if world.sides[MESSAGES].waits.len() < 3 => {
                    world.add(MESSAGES, &[128], None);
                }
                Event::Ready => {
                    world.boss.ready = world.boss.owes.is_some();
                    world.service |= world.boss.ready;
                }
                Event::Happens => {
                    world.boss.events += 1;
                    happened += 1;
                    world.service = true;
                }
                Event::Slice(descriptors) => {
                    let budget = Budget::of(*descriptors, 8192);
                    world.slice(budget).expect("no rule was broken");
                }
                Event::Take => {
                    while world.sides[REQUESTS].take(&world.ram).is_some() {}
                    for number in world.messages() {
                        if number == 0 {
                            told += 1;
                        } else {
                            assert_eq!(Some(number), asked.pop_front(), "in order");
                        }
                    }
                }
                Event::Reopen => {
                    // What the device has taken already is answered or forgotten.
                    world.say(1, PORT_OPEN, 0);
                    while world.sides[REQUESTS].take(&world.ram).is_some() {}
                    for number in world.messages() {
                        told += u64::from(number == 0);
                    }
                    let left = world.sides[REQUESTS].waits.len();
                    let gone = asked.len() - left;
                    asked.drain(..gone);
                    happened = told;
                    world.say(1, PORT_OPEN, 1);
                }
                _ => {}
            }
        };
        for event in &all {
            step(&mut world, event);
        }
        for _ in 0..happened_at_most(&all) {
            for event in [Event::Offer, Event::Ready, Event::Slice(10), Event::Slice(10), Event::Take] {
                step(&mut world, &event);
            }
        }
        prop_assert_eq!(asked.len(), 0);
        prop_assert_eq!(told, happened);
    }
}

/// Rounds after which everything has come.
fn happened_at_most(all: &[Event]) -> usize {
    2 * all.len() + 8
}
