//! A virtio-console with its driver, who prints its output, and who types its input. Nobody looks without having been told.

use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use bulkhead_abi::device::ring::{self, DESCRIPTOR, ENTRIES, INDEX, NEXT, WRITE};

use super::devices::Unread;
use super::parts::*;
use crate::console::mux::Streams;
use crate::virtio::console::BYTE;
use crate::virtio::console::Console;
use crate::virtio::device::Outcome;
use crate::virtio::queue::{self as queues, Budget};
use crate::virtio::requests::{Release, Requests};
use crate::virtio::round::SLICE;
use crate::virtio::transport::{Effect, Offer, Transport, feature, register, status};

const SIZE: u16 = 8;
const OFFER: Offer = Offer {
    device: 3,
    features: feature::VERSION_1 | feature::EVENT_IDX | feature::RING_RESET,
    queues: &[SIZE, SIZE],
    config: &[],
};
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
/// Bytes of each descriptor's part of the guest's memory. That of the receive queue lies across two regions.
const PART_BYTES: u64 = 0x180;
const PARTS: [u64; 2] = [0x4000_2200, 0x4000_1000];

#[derive(Clone, Debug)]
enum Event {
    /// The driver sends buffers of these lengths, as one chain. The second one may be for the other direction.
    Send(Vec<u32>, bool),
    /// The driver offers buffers for input.
    Offer(Vec<u32>, bool),
    /// A person types.
    Type(usize),
    /// Somebody prints.
    Print(usize),
    Slice {
        descriptors: u32,
        bytes: u32,
    },
    Interrupt,
    Reset,
}

fn events() -> impl Strategy<Value = Event> {
    let lengths = || prop::collection::vec(0u32..300, 1..4);
    prop_oneof![
        6 => (lengths(), any::<bool>()).prop_map(|(all, odd)| Event::Send(all, odd)),
        4 => (lengths(), any::<bool>()).prop_map(|(all, odd)| Event::Offer(all, odd)),
        4 => (1usize..40).prop_map(Event::Type),
        6 => (1usize..900).prop_map(Event::Print),
        12 => (1u32..6, 1u32..4096).prop_map(|(descriptors, bytes)| Event::Slice { descriptors, bytes }),
        4 => Just(Event::Interrupt),
        1 => Just(Event::Reset),
    ]
}

/// The driver's side of a queue.
struct Side {
    queue: usize,
    events: bool,
    free: Vec<u16>,
    /// Chains that the device has: head, descriptors, bytes that it is to be given back with at most.
    waits: Vec<(u16, Vec<u16>, u32)>,
    index: u16,
    notified: u16,
    used: u16,
}

impl Side {
    fn new(queue: usize, events: bool) -> Self {
        Self {
            queue,
            events,
            free: (0..SIZE).collect(),
            waits: Vec::new(),
            index: 0,
            notified: 0,
            used: 0,
        }
    }

    fn base(&self) -> u64 {
        0x4000_0000 + 0x400 * self.queue as u64
    }
    fn available(&self) -> u64 {
        self.base() + DESCRIPTOR * u64::from(SIZE)
    }
    fn used_at(&self) -> u64 {
        self.base() + 0x100
    }
    fn part(&self, number: u16) -> u64 {
        PARTS[self.queue] + PART_BYTES * u64::from(number)
    }

    /// Makes a chain; `content` is what the device reads, `odd` is the buffer that is for the other direction.
    fn add(
        &mut self,
        ram: &Ram,
        lengths: &[u32],
        odd: Option<usize>,
        content: &mut dyn FnMut() -> u8,
    ) -> bool {
        if lengths.len() > self.free.len() {
            return false;
        }
        let numbers: Vec<u16> = self.free.drain(..lengths.len()).collect();
        let mut writable = 0;
        for (at, len) in lengths.iter().enumerate() {
            let ipa = self.part(numbers[at]);
            let writes = (self.queue == RECEIVE) != (odd == Some(at));
            if writes {
                writable += len;
                put(ram, ipa, &vec![0; *len as usize]);
            } else {
                let bytes: Vec<u8> = (0..*len)
                    .map(|_| if odd == Some(at) { b'!' } else { content() })
                    .collect();
                put(ram, ipa, &bytes);
            }
            let last = at + 1 == lengths.len();
            let flags = if last { 0 } else { NEXT } | if writes { WRITE } else { 0 };
            let next = numbers.get(at + 1).copied().unwrap_or(0);
            let table = self.base() + DESCRIPTOR * u64::from(numbers[at]);
            put(ram, table, &ipa.to_le_bytes());
            put(ram, table + 8, &len.to_le_bytes());
            put(ram, table + 12, &flags.to_le_bytes());
            put(ram, table + 14, &next.to_le_bytes());
        }
        let entry = self.available() + ENTRIES + 2 * u64::from(self.index % SIZE);
        put(ram, entry, &numbers[0].to_le_bytes());
        self.index = self.index.wrapping_add(1);
        put(ram, self.available() + INDEX, &self.index.to_le_bytes());
        self.waits.push((numbers[0], numbers, writable));
        true
    }

    fn notifies(&mut self, ram: &Ram) -> bool {
        let (new, old) = (self.index, self.notified);
        self.notified = new;
        if self.events {
            let event = self.used_at() + ring::avail_event(SIZE);
            ring::has_passed(ram.get16(reached(event)), new, old)
        } else {
            new != old && ram.get16(reached(self.used_at())) & ring::NO_NOTIFY == 0
        }
    }

    /// Takes what was given back: the bytes that the device has written, of each chain.
    fn interrupt(&mut self, ram: &Ram) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            while ram.get16(reached(self.used_at() + INDEX)) != self.used {
                let entry = self.used_at() + ENTRIES + 8 * u64::from(self.used % SIZE);
                let head = ram.get32(reached(entry)) as u16;
                let len = ram.get32(reached(entry + 4));
                self.used = self.used.wrapping_add(1);
                let which = self.waits.iter().position(|chain| chain.0 == head);
                let (_, numbers, writable) = self.waits.remove(which.expect("once"));
                assert!(len <= writable, "{len} of {writable}");
                let mut left = len;
                for number in &numbers {
                    let table = self.base() + DESCRIPTOR * u64::from(*number);
                    let bytes = ram.get32(reached(table + 8)).min(left);
                    if ram.get16(reached(table + 12)) & WRITE != 0 {
                        all.extend(fetch(ram, self.part(*number), bytes as usize));
                        left -= bytes;
                    }
                }
                self.free.extend(numbers);
            }
            let event = self.available() + ring::used_event(SIZE);
            put(ram, event, &self.used.to_le_bytes());
            if ram.get16(reached(self.used_at() + INDEX)) == self.used {
                return all;
            }
        }
    }
}

struct World {
    ram: Ram,
    console: Console,
    requests: Requests,
    transport: Transport,
    streams: Streams,
    sides: [Side; 2],
    events: bool,
    /// The service thread was told, and the driver.
    service: bool,
    interrupt: bool,
    /// Whoever prints was told.
    prints: bool,
    sent: VecDeque<u8>,
    next: u8,
    typed: VecDeque<u8>,
    printed: usize,
    read: usize,
}

impl World {
    fn new(events: bool) -> Self {
        let mut world = Self {
            ram: Ram::new(),
            console: Console::new(),
            requests: Requests::new(),
            transport: Transport::new(),
            streams: Streams::default(),
            sides: [Side::new(RECEIVE, events), Side::new(TRANSMIT, events)],
            events,
            service: false,
            interrupt: false,
            prints: false,
            sent: VecDeque::new(),
            next: 0,
            typed: VecDeque::new(),
            printed: 0,
            read: 0,
        };
        world.set_up();
        world
    }

    fn set(&mut self, offset: u64, value: u32) -> Effect {
        self.transport.write(&OFFER, &Unread, offset, 4, value)
    }

    fn set_up(&mut self) {
        self.sides = [
            Side::new(RECEIVE, self.events),
            Side::new(TRANSMIT, self.events),
        ];
        let features = if self.events { feature::EVENT_IDX } else { 0 };
        self.set(register::DRIVER_FEATURES_SEL, 0);
        self.set(register::DRIVER_FEATURES, features as u32);
        self.set(register::DRIVER_FEATURES_SEL, 1);
        self.set(register::DRIVER_FEATURES, (feature::VERSION_1 >> 32) as u32);
        self.set(register::STATUS, 1 | 2 | status::FEATURES_OK);
        for queue in 0..2 {
            let side = &self.sides[queue];
            let (table, available, used) = (side.base(), side.available(), side.used_at());
            put(&self.ram, table, &vec![0; 0x200]);
            self.set(register::QUEUE_SEL, queue as u32);
            self.set(register::QUEUE_NUM, SIZE.into());
            self.set(register::QUEUE_DESC, table as u32);
            self.set(register::QUEUE_DRIVER, available as u32);
            self.set(register::QUEUE_DEVICE, used as u32);
            self.set(register::QUEUE_READY, 1);
        }
        let effect = self.set(register::STATUS, status::DRIVER_OK);
        assert_eq!(effect, Effect::Start);
        self.requests.start();
        self.service = true;
    }

    fn tell(&mut self, outcome: Outcome) {
        assert!(!outcome.failed, "no rule was broken");
        self.interrupt |= outcome.used;
        self.prints |= outcome.backend;
        self.service |= outcome.more;
    }

    /// A slice, if the service thread was told.
    fn slice(&mut self, budget: Budget) {
        if !core::mem::take(&mut self.service) {
            return;
        }
        if self.requests.asked().is_none() && self.requests.take_start() {
            let begun = self.console.start(&self.transport, &self.requests, &Vm);
            self.tell(begun);
        }
        let mut left = budget;
        let outcome = self.console.slice(
            self.requests.look(),
            &self.ram,
            &Vm,
            &self.streams,
            &mut left,
        );
        self.tell(outcome);
        self.service |= self.requests.any();
    }

    fn notify(&mut self, queue: usize) {
        if self.sides[queue].notifies(&self.ram) {
            self.service = true;
        }
    }

    fn print(&mut self, most: usize) {
        for _ in 0..most {
            let Some(byte) = self.streams.output.pop() else {
                break;
            };
            assert_eq!(Some(byte), self.sent.pop_front(), "in order, none twice");
            self.printed += 1;
        }
        if self.streams.output.free() >= 512 && self.streams.device_wants_space.made() {
            self.service = true;
        }
    }

    fn take_interrupt(&mut self) {
        if !core::mem::take(&mut self.interrupt) {
            return;
        }
        self.sides[TRANSMIT].interrupt(&self.ram);
        let got = self.sides[RECEIVE].interrupt(&self.ram);
        for byte in got {
            assert_eq!(Some(byte), self.typed.pop_front(), "in order, none twice");
            self.read += 1;
        }
    }

    fn run(&mut self, event: &Event) {
        match event {
            Event::Send(lengths, odd) => {
                let odd = odd.then_some(lengths.len() - 1);
                let (next, sent) = (&mut self.next, &mut self.sent);
                let mut content = || {
                    *next = next.wrapping_add(1);
                    sent.push_back(*next);
                    *next
                };
                self.sides[TRANSMIT].add(&self.ram, lengths, odd, &mut content);
                self.notify(TRANSMIT);
            }
            Event::Offer(lengths, odd) => {
                let odd = odd.then_some(0);
                self.sides[RECEIVE].add(&self.ram, lengths, odd, &mut || 0);
                self.notify(RECEIVE);
            }
            Event::Type(bytes) => {
                for _ in 0..*bytes {
                    self.next = self.next.wrapping_add(1);
                    if self.streams.input.push(self.next) {
                        self.typed.push_back(self.next);
                    }
                }
                self.service = true;
            }
            Event::Print(bytes) => self.print(*bytes),
            Event::Slice { descriptors, bytes } => self.slice(Budget::of(*descriptors, *bytes)),
            Event::Interrupt => self.take_interrupt(),
            Event::Reset => self.reset(),
        }
    }

    /// The driver resets the device and sets it up anew. What it has sent and the device has not read goes with that.
    fn reset(&mut self) {
        self.print(usize::MAX);
        assert_eq!(self.set(register::STATUS, 0), Effect::Reset);
        let mut waited = 0;
        while !self.requests.release(Release::All) {
            self.service = true;
            self.slice(Budget::of(1, 1));
            waited += 1;
            assert!(waited < 3, "it lets go in one slice");
        }
        self.transport.reset(&OFFER, &Unread);
        self.take_interrupt();
        // What was put into buffers of which the driver was not told is lost with them.
        let seen = self.streams.input.len() as usize;
        self.typed.drain(..self.typed.len() - seen);
        self.sent.clear();
        self.interrupt = false;
        self.set_up();
    }

    /// Everybody does what there is to do, as long as somebody was told.
    fn settle(&mut self) {
        for _ in 0..4000 {
            self.slice(SLICE);
            if self.prints || !self.streams.output.is_empty() {
                self.prints = false;
                self.print(usize::MAX);
            }
            self.take_interrupt();
            if !self.service && !self.interrupt {
                return;
            }
        }
        panic!("no end");
    }
}

/// Who prints is told of bytes also if it has taken as many meanwhile as have come: it may have gone to sleep before they came.
#[test]
fn bytes_are_told_of_while_others_are_printed() {
    let mut world = World::new(false);
    world.run(&Event::Send(vec![5], false));
    world.slice(SLICE);
    assert_eq!(world.streams.output.len(), 5);
    world.run(&Event::Send(vec![5], false));
    let memory = Printing(&world.ram, &world.streams);
    let asked = world.requests.look();
    let outcome = world
        .console
        .slice(asked, &memory, &Vm, &world.streams, &mut { SLICE });
    assert_eq!(world.streams.output.len(), 5, "as many as before");
    assert!(outcome.backend);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// What is sent is printed, what is typed is received: all of it, in order, once, and every chain comes back.
    #[test]
    fn bytes_go_both_ways(
        events in prop::collection::vec(events(), 1..120),
        with_event_idx in any::<bool>(),
    ) {
        let mut world = World::new(with_event_idx);
        for event in &events {
            world.run(event);
        }
        world.settle();
        prop_assert!(world.sent.is_empty(), "{} bytes were not printed", world.sent.len());
        prop_assert!(world.sides[TRANSMIT].waits.is_empty());
        // Input waits for buffers only.
        prop_assert_eq!(world.typed.len() as u32, world.streams.input.len());
        if !world.typed.is_empty() {
            let capacity: u32 = world.sides[RECEIVE].waits.iter().map(|chain| chain.2).sum();
            prop_assert_eq!(capacity, 0, "buffers wait while there is input");
        }
    }
}

fn whole() -> Budget {
    SLICE
}

/// A slice puts no more bytes into the stream than its budget has instructions for.
#[test]
fn a_slice_is_bounded() {
    let mut world = World::new(true);
    world.run(&Event::Send(vec![300], false));
    world.slice(whole());
    let bytes = (SLICE.left() - queues::DESCRIPTOR).div_ceil(BYTE);
    assert_eq!(world.streams.output.len(), bytes);
    assert!(world.service, "it goes on at once");
    world.settle();
    assert_eq!(world.printed, 300);
}

/// What finds no room waits, without being looked at, until there is some again.
#[test]
fn a_full_stream_is_waited_for() {
    let mut world = World::new(true);
    world.run(&Event::Send(vec![300; 3], false));
    world.run(&Event::Send(vec![300; 3], false));
    while world.service {
        world.slice(whole());
    }
    assert_eq!(world.streams.output.free(), 0);
    world.print(100);
    assert!(!world.service, "that is too little");
    world.print(500);
    assert!(world.service);
    world.settle();
    assert_eq!(world.printed, 1800);
}

#[test]
fn broken_rings_fail_the_device_and_what_was_before_is_printed() {
    let mut world = World::new(true);
    world.run(&Event::Send(vec![5], false));
    let mut loops = Side::new(TRANSMIT, true);
    (loops.free, loops.index) = (vec![3], 1);
    loops.add(&world.ram, &[1], None, &mut || b'x');
    // A descriptor that follows itself.
    put(
        &world.ram,
        loops.base() + 3 * DESCRIPTOR + 12,
        &[1, 0, 3, 0],
    );
    let (requests, ram) = (&world.requests, &world.ram);
    requests.take_start();
    world.console.start(&world.transport, requests, &Vm);
    let mut failed = false;
    for _ in 0..10 {
        let mut budget = whole();
        let outcome = world
            .console
            .slice(requests.look(), ram, &Vm, &world.streams, &mut budget);
        if outcome.failed {
            assert!(!outcome.more);
            failed = true;
            break;
        }
    }
    assert!(failed);
    assert!(world.streams.output.len() >= 5, "what was sent before");
    let before = world.streams.output.len();
    let outcome = world
        .console
        .slice(requests.look(), ram, &Vm, &world.streams, &mut whole());
    assert_eq!(outcome, Outcome::default(), "it is not served any more");
    assert_eq!(world.streams.output.len(), before);
    // A reset, and it works again.
    world.transport.fail(&Unread);
    while world.streams.output.pop().is_some() {}
    world.sent.clear();
    world.reset();
    world.run(&Event::Send(vec![9, 3], false));
    world.run(&Event::Offer(vec![4], false));
    world.run(&Event::Type(3));
    world.settle();
    assert_eq!((world.printed, world.read), (12, 3));
}

/// A buffer outside the VM's memory, and one that the VM may only read, for input.
#[test]
fn buffers_are_where_the_vm_may_access_them() {
    for (queue, ipa) in [
        (TRANSMIT, 0x6000_0000u64),
        (RECEIVE, 0x6000_0000),
        (RECEIVE, 0x5000_0000),
    ] {
        let mut world = World::new(true);
        world.slice(whole());
        world.sides[queue].add(&world.ram, &[16], None, &mut || b'x');
        let table = world.sides[queue].base();
        put(&world.ram, table, &ipa.to_le_bytes());
        world.streams.input.push(b'y');
        let outcome = world.console.slice(
            world.requests.look(),
            &world.ram,
            &Vm,
            &world.streams,
            &mut whole(),
        );
        // The second slice has what the first one has only looked at.
        let again = world.console.slice(
            world.requests.look(),
            &world.ram,
            &Vm,
            &world.streams,
            &mut whole(),
        );
        assert!(outcome.failed || again.failed, "{ipa:#x}");
    }
}

/// A queue that is reset by itself, while the other goes on.
#[test]
fn a_queue_is_let_go_of_alone() {
    let mut world = World::new(true);
    world.run(&Event::Send(vec![4], false));
    world.settle();
    assert!(!world.requests.release(Release::Queue(1)));
    world.service = true;
    world.slice(whole());
    assert!(world.requests.release(Release::Queue(1)));
    world.transport.release(1, &OFFER, &Unread);
    world.sides[TRANSMIT].add(&world.ram, &[4], None, &mut || b'z');
    world.run(&Event::Offer(vec![20], false));
    world.run(&Event::Type(7));
    world.settle();
    assert_eq!((world.printed, world.read), (4, 7));
}

/// A VM that ends while its console has a slice: who waits for the release is told by the slice that began with it, and by no other.
#[test]
fn what_is_asked_in_the_middle_of_a_slice_is_for_the_next_one() {
    let mut world = World::new(true);
    world.slice(whole());
    let asked = world.requests.look();
    assert!(!world.requests.release(Release::All));
    let (ram, streams) = (&world.ram, &world.streams);
    world.console.slice(asked, ram, &Vm, streams, &mut whole());
    assert_eq!(world.requests.asked(), Some(Release::All), "it waits still");
    let asked = world.requests.look();
    assert_eq!(asked.release(), Some(Release::All));
    world.console.slice(asked, ram, &Vm, streams, &mut whole());
    assert!(world.requests.release(Release::All), "it has let go");
}
