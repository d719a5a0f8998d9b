//! The control port with its driver and a manager behind it. Nobody looks without having been told.

use std::collections::VecDeque;
use std::vec::Vec;

use zerocopy::{FromBytes, IntoBytes};

use bulkhead_abi::control::{Message, Request};
use bulkhead_abi::device::ring::{self, DESCRIPTOR, ENTRIES, INDEX, NEXT, WRITE};

use super::devices::Unread;
use super::parts::*;
use crate::virtio::guest_ring::Broken;
use crate::virtio::memory::At;
use crate::virtio::ports::{FIRST_OF_MESSAGES, Look, Manager, ONE, Ports, WITH_CONTROL};
use crate::virtio::queue::Budget;
use crate::virtio::round::SLICE;
use crate::virtio::transport::{Offer, Transport, feature, register, status};

pub const SIZE: u16 = 32;
/// Descriptors of each chain, of which four can be with the device.
pub const OF_CHAIN: u16 = 8;
/// Queues: announcements to the driver and from it, messages, requests.
pub const HEARD: usize = 0;
pub const SAID: usize = 1;
pub const MESSAGES: usize = 2;
pub const REQUESTS: usize = 3;
/// Events of announcements.
pub const DEVICE_READY: u16 = 0;
pub const PORT_READY: u16 = 3;
pub const PORT_OPEN: u16 = 6;

/// The driver's side of a queue.
pub struct Side {
    pub queue: usize,
    pub index: u16,
    pub notified: u16,
    pub used: u16,
    /// Chains that the device has: their buffers.
    pub waits: VecDeque<Vec<(u64, u32)>>,
}

impl Side {
    pub fn new(queue: usize) -> Self {
        Self {
            queue,
            index: 0,
            notified: 0,
            used: 0,
            waits: VecDeque::new(),
        }
    }
    pub fn base(&self) -> u64 {
        0x4000_0000 + 0x400 * self.queue as u64
    }
    pub fn available(&self) -> u64 {
        self.base() + DESCRIPTOR * u64::from(SIZE)
    }
    pub fn used_at(&self) -> u64 {
        self.base() + 0x280
    }
    /// The buffers of a chain. The second for messages lies across two of the VM's regions.
    pub fn buffer(&self, number: u16) -> u64 {
        let first = [0x4000_1c00, 0x4000_1e00, 0x4000_1440, 0x4000_1840][self.queue];
        first + 0x1000 * u64::from(number % 4)
    }

    /// Makes a chain of these buffers available, one behind the other in memory, with these bytes in them if the device reads.
    pub fn add(&mut self, ram: &Ram, lengths: &[u32], bytes: Option<&[u8]>) {
        let mut at = self.buffer(self.index);
        let mut rest = bytes.unwrap_or_default();
        let mut buffers = Vec::new();
        assert!(self.waits.len() < 4);
        let first = self.index % 4 * OF_CHAIN;
        for (number, len) in (first..).zip(lengths) {
            let (own, later) = rest.split_at(rest.len().min(*len as usize));
            put(ram, at, own);
            rest = later;
            let last = usize::from(number - first) + 1 == lengths.len();
            let flags = if last { 0 } else { NEXT } | if bytes.is_none() { WRITE } else { 0 };
            let table = self.base() + DESCRIPTOR * u64::from(number);
            put(ram, table, &at.to_le_bytes());
            put(ram, table + 8, &len.to_le_bytes());
            put(ram, table + 12, &flags.to_le_bytes());
            put(ram, table + 14, &(number + 1).to_le_bytes());
            buffers.push((at, *len));
            at += u64::from(*len) + 8;
        }
        let entry = self.available() + ENTRIES + 2 * u64::from(self.index % SIZE);
        put(ram, entry, &first.to_le_bytes());
        self.index = self.index.wrapping_add(1);
        put(ram, self.available() + INDEX, &self.index.to_le_bytes());
        self.waits.push_back(buffers);
    }

    /// Whether the device wants to be told of what was made available since it was asked last.
    pub fn notifies(&mut self, ram: &Ram) -> bool {
        let (new, old) = (self.index, self.notified);
        self.notified = new;
        let event = ram.get16(reached(self.used_at() + ring::avail_event(SIZE)));
        ring::has_passed(event, new, old)
    }

    /// Takes a chain that was given back: what the device has written.
    pub fn take(&mut self, ram: &Ram) -> Option<Vec<u8>> {
        if ram.get16(reached(self.used_at() + INDEX)) == self.used {
            return None;
        }
        let entry = self.used_at() + ENTRIES + 8 * u64::from(self.used % SIZE);
        let mut left = ram.get32(reached(entry + 4));
        self.used = self.used.wrapping_add(1);
        put(
            ram,
            self.available() + ring::used_event(SIZE),
            &self.used.to_le_bytes(),
        );
        let mut bytes = Vec::new();
        for (at, len) in self.waits.pop_front().expect("one that the device had") {
            let here = len.min(left);
            bytes.extend(fetch(ram, at, here as usize));
            left -= here;
        }
        assert_eq!(left, 0, "no more than there is room for");
        Some(bytes)
    }
}

/// Who answers.
#[derive(Default)]
pub struct Boss {
    pub opened: usize,
    /// Requests as they came, and their bytes.
    pub requests: Vec<(Request, u32)>,
    /// The answer that comes later.
    pub owes: Option<u32>,
    pub ready: bool,
    pub events: u64,
    /// Bytes that follow each message, and those that were copied: from where, to where, how many.
    pub data: u16,
    pub copied: Vec<(u32, u64, u32)>,
}

pub fn message(number: u32) -> Message {
    Message {
        number,
        values: [u64::from(number) << 32 | 0x1234; 14],
        ..Message::default()
    }
}

impl Manager for Boss {
    fn open(&mut self) {
        self.opened += 1;
        (self.owes, self.ready, self.events) = (None, false, 0);
    }
    fn request(&mut self, request: &Request, bytes: u32, to: &mut Message) -> bool {
        assert!(self.owes.is_none(), "one at a time");
        self.requests.push((*request, bytes));
        if request.number != 0 && request.number.is_multiple_of(3) {
            self.owes = Some(request.number);
            return false;
        }
        *to = Message {
            data: self.data,
            ..message(request.number)
        };
        true
    }
    fn copy(&mut self, from: u32, to: At, bytes: u32) {
        self.copied.push((from, to.address(), bytes));
    }
    fn answer(&mut self, to: &mut Message) -> bool {
        let Some(owed) = self.owes.filter(|_| self.ready) else {
            return false;
        };
        (self.owes, self.ready) = (None, false);
        *to = message(owed);
        true
    }
    fn event(&mut self, to: &mut Message) -> bool {
        let Some(left) = self.events.checked_sub(1) else {
            return false;
        };
        self.events = left;
        *to = message(0);
        true
    }
    fn is_asked(&self) -> bool {
        self.owes.is_some()
    }
}

pub struct World {
    pub ram: Ram,
    pub transport: Transport,
    pub sides: [Side; 4],
    pub ports: Ports,
    pub boss: Boss,
    /// What is told of messages and requests is served at once, as an exit does.
    pub at_exit: bool,
    /// The service thread was told.
    pub service: bool,
    pub interrupt: bool,
}

pub const OFFER: Offer = Offer {
    device: 3,
    features: feature::VERSION_1 | feature::EVENT_IDX | feature::RING_RESET,
    queues: &[SIZE; WITH_CONTROL],
    config: &[],
};

/// The registers as a driver sets them up that has these queues.
pub fn set_up(sides: &[Side]) -> Transport {
    let mut transport = Transport::new();
    let mut set = |offset, value: u32| {
        transport.write(&OFFER, &Unread, offset, 4, value);
    };
    set(register::DRIVER_FEATURES_SEL, 0);
    set(register::DRIVER_FEATURES, feature::EVENT_IDX as u32);
    set(register::DRIVER_FEATURES_SEL, 1);
    set(register::DRIVER_FEATURES, (feature::VERSION_1 >> 32) as u32);
    set(register::STATUS, 1 | 2 | status::FEATURES_OK);
    for (queue, side) in (ONE as u32..).zip(sides) {
        set(register::QUEUE_SEL, queue);
        set(register::QUEUE_NUM, SIZE.into());
        set(register::QUEUE_DESC, side.base() as u32);
        set(register::QUEUE_DRIVER, side.available() as u32);
        set(register::QUEUE_DEVICE, side.used_at() as u32);
        set(register::QUEUE_READY, 1);
    }
    set(register::STATUS, status::DRIVER_OK);
    transport
}

impl World {
    pub fn new(console: bool) -> Self {
        let sides = [HEARD, SAID, MESSAGES, REQUESTS].map(Side::new);
        let transport = set_up(&sides);
        let mut ports = Ports::new(console);
        assert!(ports.start(&transport, &Vm), "all queues can be there");
        Self {
            ram: Ram::new(),
            transport,
            sides,
            ports,
            boss: Boss::default(),
            at_exit: false,
            service: true,
            interrupt: false,
        }
    }

    pub fn look(&mut self, look: Look, mut budget: Budget) -> Result<(), Broken> {
        let guest = (&self.ram, &Vm);
        let outcome = self.ports.slice(look, guest, &mut self.boss, &mut budget);
        self.service |= outcome.more;
        self.interrupt |= outcome.used;
        if outcome.failed { Err(Broken) } else { Ok(()) }
    }

    /// A slice of the service thread, if it was told.
    pub fn slice(&mut self, budget: Budget) -> Result<(), Broken> {
        if !core::mem::take(&mut self.service) {
            return Ok(());
        }
        self.look(Look::All, budget)
    }

    /// Slices until there is nothing to do.
    pub fn settle(&mut self) -> Result<(), Broken> {
        for _ in 0..64 {
            self.slice(SLICE)?;
        }
        assert!(!self.service, "there is always more");
        Ok(())
    }

    pub fn add(&mut self, queue: usize, lengths: &[u32], bytes: Option<&[u8]>) {
        self.sides[queue].add(&self.ram, lengths, bytes);
        if !self.sides[queue].notifies(&self.ram) {
            return;
        }
        if self.at_exit && (queue + ONE) as u32 >= FIRST_OF_MESSAGES {
            self.look(Look::Messages, SLICE)
                .expect("no rule was broken");
        } else {
            self.service = true;
        }
    }

    /// Says something about a port, and takes what is announced, a buffer for each.
    pub fn say(&mut self, port: u32, event: u16, value: u16) -> Vec<Vec<u8>> {
        let said = [
            &port.to_le_bytes()[..],
            &event.to_le_bytes(),
            &value.to_le_bytes(),
        ]
        .concat();
        self.add(SAID, &[8], Some(&said));
        let mut heard = Vec::new();
        for _ in 0..4 {
            if self.sides[HEARD].waits.is_empty() {
                self.add(HEARD, &[64], None);
            }
            self.settle().expect("no rule was broken");
            heard.extend(self.sides[HEARD].take(&self.ram));
        }
        while self.sides[SAID].take(&self.ram).is_some() {}
        heard
    }

    pub fn open(&mut self) {
        self.say(0, DEVICE_READY, 1);
        self.say(1, PORT_READY, 1);
        self.say(1, PORT_OPEN, 1);
    }

    pub fn ask(&mut self, number: u32, lengths: &[u32]) {
        let request = request_of(number);
        let mut bytes = request.as_bytes().to_vec();
        bytes.resize(lengths.iter().sum::<u32>() as usize, 0xee);
        self.add(REQUESTS, lengths, Some(&bytes));
    }

    pub fn messages(&mut self) -> Vec<u32> {
        let mut all = Vec::new();
        while let Some(bytes) = self.sides[MESSAGES].take(&self.ram) {
            let found = Message::read_from_bytes(&bytes).expect("a whole message");
            assert_eq!(found, message(found.number), "as it was sent");
            all.push(found.number);
        }
        all
    }
}

pub fn request_of(number: u32) -> Request {
    Request {
        number,
        values: [1, 2, 3, 4].map(|n: u64| n << 56 | n),
        ..Request::default()
    }
}

pub fn announcement(port: u32, event: u16, name: &str) -> Vec<u8> {
    [
        &port.to_le_bytes()[..],
        &event.to_le_bytes(),
        &1u16.to_le_bytes(),
        name.as_bytes(),
    ]
    .concat()
}
