//! The control port of a virtio-console: port 1, which VMs that manage others have. The crate's own driver for consoles knows port 0 alone; its
//! virtqueues are used here.

use super::{Machine, PAGE, Registers, registers, take};
use crate::board::Device;
use crate::{Board, check, sysreg, timer};
use arrayvec::ArrayVec;
use bulkhead_abi::control::{EVENT_STATE, Kind, Message, PORT_NAME, Request, Status, VERSION};
use core::slice;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::{DeviceStatus, DeviceType, Transport};
use virtio_drivers::{Error, Result};
use zerocopy::{FromBytes, IntoBytes};

/// Queues by which ports are announced, and those of port 1: what the guest receives, and what it sends (VIRTIO 1.2, 5.3.2).
const HEARD: u16 = 2;
const SAID: u16 = 3;
const MESSAGES: u16 = 4;
const REQUESTS: u16 = 5;
const ENTRIES: usize = 4;
/// The control port.
const PORT: u32 = 1;
/// Bytes of an announcement without a name.
const HEAD: usize = 8;
/// Events that were not looked at yet.
const KEPT: usize = 64;
/// Microseconds within which everything is answered.
const PATIENCE: u64 = 5_000_000;

type Queue = VirtQueue<Machine, ENTRIES>;

/// Bytes that the device has, or not. They are never given back: whatever a device does, it finds no other thing there.
struct Buffer {
    bytes: &'static mut [u8],
    token: Option<u16>,
}

impl Buffer {
    fn new() -> Option<Self> {
        let start = take(1)?.as_ptr();
        Some(Self {
            // SAFETY: the page is nobody else's, zero, and never given back.
            bytes: unsafe { slice::from_raw_parts_mut(start, PAGE) },
            token: None,
        })
    }

    /// Lets the device write to it.
    fn offer(&mut self, queue: &mut Queue, to: u16, transport: &mut Registers) -> Result {
        // SAFETY: nobody touches the buffer while the device has it, and it stays where it is.
        let token = unsafe { queue.add(&[], &mut [&mut *self.bytes]) }?;
        self.token = Some(token);
        if queue.should_notify() {
            transport.notify(to);
        }
        Ok(())
    }

    /// What the device has written, if it has.
    fn taken(&mut self, queue: &mut Queue) -> Option<usize> {
        let own = self.token.filter(|own| queue.peek_used() == Some(*own))?;
        self.token = None;
        // SAFETY: the buffer with which the chain was added.
        let bytes = unsafe { queue.pop_used(own, &[], &mut [&mut *self.bytes]) };
        bytes.ok().map(|bytes| bytes as usize)
    }
}

/// The port.
pub struct ControlPort {
    device: Device,
    transport: Registers,
    heard: Queue,
    said: Queue,
    messages: Queue,
    requests: Queue,
    announcement: Buffer,
    /// Where messages come, in turn.
    answers: ArrayVec<Buffer, ENTRIES>,
    /// That of the next message, and of the last.
    next: usize,
    last: usize,
    says: Buffer,
    asks: Buffer,
    events: ArrayVec<Message, KEPT>,
    number: u32,
    /// Bytes that follow the message that came last.
    data: usize,
    /// Bytes and pieces of what was posted last.
    posted: (usize, usize),
}

/// The first bytes of a buffer in pieces.
fn parts(bytes: &[u8], (length, pieces): (usize, usize)) -> ArrayVec<&[u8], ENTRIES> {
    let each = length.div_ceil(pieces).max(1);
    bytes[..length].chunks(each).take(ENTRIES).collect()
}

/// Checks what a request came to.
pub fn expect(name: &str, status: Option<Status>, expected: Status) {
    check::holds(
        name,
        status == Some(expected),
        format_args!("{status:?} instead of {expected:?}"),
    );
}

impl ControlPort {
    /// That of the VM's first console; as [`Self::open`].
    pub fn of(board: &'static Board) -> Option<Self> {
        super::devices(board, DeviceType::Console)
            .next()
            .and_then(Self::open)
    }

    /// Resets the device, drives it, and opens its control port. `None`: it has none, cannot be driven, or says something unexpected. One message at a time
    /// has room.
    pub fn open(device: Device) -> Option<Self> {
        Self::with_room(device, 1)
    }

    /// The same with room for so many messages at a time.
    pub fn with_room(device: Device, messages_at_once: usize) -> Option<Self> {
        let mut transport = registers(device)?;
        transport.set_status(DeviceStatus::empty());
        transport.set_status(DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER);
        // VERSION_1, EVENT_IDX, MULTIPORT.
        let features = transport.read_device_features() & (1 << 32 | 1 << 29 | 1 << 1);
        transport.write_driver_features(features);
        let status = DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER | DeviceStatus::FEATURES_OK;
        transport.set_status(status);
        let events = features & 1 << 29 != 0;
        let mut queue = |index| Queue::new(&mut transport, index, false, events).ok();
        let (heard, said) = (queue(HEARD)?, queue(SAID)?);
        let (messages, requests) = (queue(MESSAGES)?, queue(REQUESTS)?);
        transport.set_status(status | DeviceStatus::DRIVER_OK);
        let mut port = Self {
            device,
            transport,
            heard,
            said,
            messages,
            requests,
            announcement: Buffer::new()?,
            answers: (0..messages_at_once).map_while(|_| Buffer::new()).collect(),
            next: 0,
            last: 0,
            says: Buffer::new()?,
            asks: Buffer::new()?,
            events: ArrayVec::new(),
            number: 0,
            data: 0,
            posted: (0, 1),
        };
        port.find().ok()?;
        Some(port)
    }

    /// Finds the port by its name, and opens it. Before it is open the device has a buffer for messages, and must not use it: what would be there is of
    /// somebody's before.
    fn find(&mut self) -> Result {
        let early = |port: &mut Self| port.message().map_or(Ok(()), |_| Err(Error::IoError));
        early(self)?;
        let offer = |port: &mut Self| {
            port.announcement
                .offer(&mut port.heard, HEARD, &mut port.transport)
        };
        offer(self)?;
        // DEVICE_READY.
        self.say(0, 0, 1)?;
        let (mut named, end) = (false, timer::now() + timer::ticks(PATIENCE));
        while timer::now() < end {
            let Some(bytes) = self.announcement.taken(&mut self.heard) else {
                sysreg::cpu_yield();
                continue;
            };
            let said = self.announcement.bytes.get(..bytes).ok_or(Error::IoError)?;
            let (head, name) = said.split_at_checked(HEAD).ok_or(Error::IoError)?;
            let port = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
            let event = u16::from_le_bytes([head[4], head[5]]);
            named |= event == 7 && port == PORT && name == PORT_NAME.as_bytes();
            offer(self)?;
            match event {
                // PORT_ADD: PORT_READY.
                1 => self.say(port, 3, 1)?,
                // PORT_OPEN of the device.
                6 if port == PORT && named => {
                    early(self)?;
                    return self.say(PORT, 6, 1);
                }
                _ => {}
            }
        }
        Err(Error::NotReady)
    }

    /// Says something about a port to the device.
    fn say(&mut self, port: u32, event: u16, value: u16) -> Result {
        let head = u64::from(port) | u64::from(event) << 32 | u64::from(value) << 48;
        self.says.bytes[..HEAD].copy_from_slice(&head.to_le_bytes());
        let buffer = &self.says.bytes[..HEAD];
        // SAFETY: nobody touches the buffer while the device has it, and it stays where it is.
        let token = unsafe { self.said.add(&[buffer], &mut []) }?;
        if self.said.should_notify() {
            self.transport.notify(SAID);
        }
        while self.said.peek_used() != Some(token) {
            sysreg::cpu_yield();
        }
        // SAFETY: the buffer with which the chain was added.
        unsafe { self.said.pop_used(token, &[buffer], &mut []) }?;
        Ok(())
    }

    /// Closes the port, and opens it again. Nothing of before comes any more.
    pub fn reopen(&mut self) -> Result {
        self.say(PORT, 6, 0)?;
        self.events.clear();
        self.say(PORT, 6, 1)
    }

    /// Whether the device says that it cannot go on.
    pub fn has_failed(&self) -> bool {
        self.transport
            .get_status()
            .contains(DeviceStatus::DEVICE_NEEDS_RESET)
    }

    /// Lets the device write a message, if it cannot yet. Returns the one that it has written.
    pub fn message(&mut self) -> Option<Message> {
        for turn in 0..self.answers.len() {
            let place = (self.next + turn) % self.answers.len();
            let buffer = &mut self.answers[place];
            if buffer.token.is_none() {
                buffer
                    .offer(&mut self.messages, MESSAGES, &mut self.transport)
                    .ok()?;
            }
        }
        let bytes = self.answers[self.next].taken(&mut self.messages)?;
        self.last = self.next;
        self.next = (self.next + 1) % self.answers.len();
        let whole = self.answers[self.last].bytes.get(..bytes)?;
        let (message, data) = Message::read_from_prefix(whole).ok()?;
        // Behind an event are those of the answer before it no more.
        self.data = data.len();
        (data.len() == usize::from(message.data)).then_some(message)
    }

    /// The bytes that follow the message that came last.
    pub fn data(&self) -> &[u8] {
        let whole = &self.answers[self.last].bytes;
        let behind = whole.get(size_of::<Message>()..);
        behind
            .and_then(|it| it.get(..self.data))
            .unwrap_or_default()
    }

    /// Gives the device these bytes in so many pieces. [`Self::is_read`] says when it has read them.
    pub fn post(&mut self, bytes: &[u8], pieces: usize) -> Result {
        if self.asks.token.is_some() {
            return Err(Error::InvalidParam);
        }
        let to = self.asks.bytes.get_mut(..bytes.len());
        to.ok_or(Error::InvalidParam)?.copy_from_slice(bytes);
        self.posted = (bytes.len(), pieces);
        let parts = parts(self.asks.bytes, self.posted);
        // SAFETY: nobody writes to the buffer while the device has it, and it stays where it is.
        let token = unsafe { self.requests.add(&parts, &mut []) }?;
        self.asks.token = Some(token);
        if self.requests.should_notify() {
            self.transport.notify(REQUESTS);
        }
        Ok(())
    }

    /// Whether the device has read what was posted last.
    pub fn is_read(&mut self) -> bool {
        let Some(token) = self.asks.token else {
            return true;
        };
        if self.requests.peek_used() != Some(token) {
            return false;
        }
        let parts = parts(self.asks.bytes, self.posted);
        // SAFETY: the buffers with which the chain was added.
        let taken = unsafe { self.requests.pop_used(token, &parts, &mut []) };
        self.asks.token = None;
        taken.is_ok()
    }

    /// Writes these bytes in so many pieces, and waits until the device has read them. It reads nothing while it has something to say and no
    /// room for it, so that what comes meanwhile is taken, and kept.
    pub fn write(&mut self, bytes: &[u8], pieces: usize) -> Result {
        self.post(bytes, pieces)?;
        let end = timer::now() + timer::ticks(PATIENCE);
        while !self.is_read() {
            if let Some(message) = self.message() {
                self.keep(message);
            }
            if timer::now() > end {
                return Err(Error::NotReady);
            }
            sysreg::cpu_yield();
        }
        Ok(())
    }

    /// Its INTID.
    pub fn intid(&self) -> u32 {
        self.device.intid
    }

    /// Acknowledges its interrupt. Returns whether it had one.
    pub fn acknowledge(&mut self) -> bool {
        !self.transport.ack_interrupt().is_empty()
    }

    /// Whether a message has come that [`Self::message`] would give.
    pub fn has_message(&mut self) -> bool {
        self.answers[self.next].token.is_some() && self.messages.can_pop()
    }

    /// Keeps a message that was not waited for. Of too many the oldest is forgotten.
    fn keep(&mut self, message: Message) {
        if self.events.is_full() {
            self.events.remove(0);
        }
        self.events.push(message);
    }

    /// Makes a request, and waits for its answer. Events that come meanwhile are kept.
    pub fn ask(&mut self, request: &Request) -> Result<Message> {
        self.write(request.as_bytes(), 1)?;
        let number = request.number;
        self.wait(|it| it.number == number && (number != 0 || it.kind < EVENT_STATE))
    }

    /// Waits for the message that is meant. Events that come before it are kept.
    pub fn wait(&mut self, is_it: impl Fn(&Message) -> bool) -> Result<Message> {
        if let Some(index) = self.events.iter().position(&is_it) {
            return Ok(self.events.remove(index));
        }
        let end = timer::now() + timer::ticks(PATIENCE);
        while timer::now() < end {
            if let Some(message) = self.message() {
                if is_it(&message) {
                    return Ok(message);
                }
                self.keep(message);
            }
            sysreg::cpu_yield();
        }
        Err(Error::NotReady)
    }

    /// Forgets the events that were kept.
    pub fn forget(&mut self) {
        self.events.clear();
    }

    /// A request about a VM.
    pub fn request(&mut self, kind: Kind, vm: u16, vcpu: u16, values: [u64; 4]) -> Request {
        self.number += 1;
        Request {
            version: VERSION,
            kind: kind as u16,
            number: self.number,
            vm,
            vcpu,
            flags: 0,
            values,
        }
    }

    /// Makes such a request, and gives its status and values.
    pub fn about(&mut self, kind: Kind, vm: u16, values: [u64; 4]) -> (Option<Status>, Message) {
        let request = self.request(kind, vm, 0, values);
        match self.ask(&request) {
            Ok(message) => (Status::of(message.status), message),
            Err(_) => (None, Message::default()),
        }
    }
}
