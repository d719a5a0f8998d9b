//! Memory of two VMs, and both ends of a shadow queue.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::vec;
use std::vec::Vec;

use bulkhead_abi::device::ring::{
    self, DESCRIPTOR, ENTRIES, INDEX, INDIRECT, NEXT, Ring, WRITE, available_bytes,
};

use crate::console::mux::Streams;
use crate::virtio::backend_ring::{BackendRing, Layout, Slot};
use crate::virtio::guest_ring::{Features, GuestRing, Setup};
use crate::virtio::memory::{Access, At, Memory, Space};
use crate::virtio::queue::{Policy, Queue};

/// Where EL2 reaches the window in tests, and the VM's regions: by IPA, EL2's address, bytes, whether the VM may write. The first two
/// meet by IPA and lie apart at EL2.
pub const WINDOW: Range<u64> = 0x10_0000..0x11_0000;
pub const REGIONS: [(u64, u64, u64, bool); 3] = [
    (0x4000_0000, 0x1000, 0x2480, true),
    (0x4000_2480, 0x8000, 0x4000, true),
    (0x5000_0000, 0xe000, 0x1000, false),
];

/// Where EL2 writes, and what then is written where.
type Race = (u64, Vec<(u64, u16)>);

/// Memory in which an access outside of what EL2 may touch is a failure.
pub struct Ram {
    bytes: RefCell<Vec<u8>>,
    /// What another CPU writes as soon as EL2 has written 16 bits to the first of these addresses.
    pub race: RefCell<Option<Race>>,
}

impl Ram {
    pub fn new() -> Self {
        Self {
            bytes: RefCell::new(vec![0; WINDOW.end as usize]),
            race: RefCell::new(None),
        }
    }

    fn check(at: At, bytes: u64, write: bool) {
        let (start, end) = (at.address(), at.address() + bytes);
        let inside = |range: Range<u64>| range.start <= start && end <= range.end;
        let guest = REGIONS
            .iter()
            .any(|&(_, at, size, writable)| inside(at..at + size) && (writable || !write));
        assert!(guest || inside(WINDOW), "{start:#x}..{end:#x} is nobody's");
    }

    pub fn read(&self, at: u64, bytes: usize) -> Vec<u8> {
        self.bytes.borrow()[at as usize..][..bytes].to_vec()
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.bytes.borrow_mut()[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    pub fn get16(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.read(at, 2).try_into().unwrap())
    }

    pub fn get32(&self, at: u64) -> u32 {
        u32::from_le_bytes(self.read(at, 4).try_into().unwrap())
    }

    pub fn get64(&self, at: u64) -> u64 {
        u64::from_le_bytes(self.read(at, 8).try_into().unwrap())
    }
}

impl Memory for Ram {
    fn load8(&self, at: At) -> u8 {
        Self::check(at, 1, false);
        self.read(at.address(), 1)[0]
    }
    fn load16(&self, at: At) -> u16 {
        Self::check(at, 2, false);
        self.get16(at.address())
    }
    fn load32(&self, at: At) -> u32 {
        Self::check(at, 4, false);
        self.get32(at.address())
    }
    fn load64(&self, at: At) -> u64 {
        Self::check(at, 8, false);
        self.get64(at.address())
    }
    fn store8(&self, at: At, value: u8) {
        Self::check(at, 1, true);
        self.write(at.address(), &[value]);
    }
    fn store16(&self, at: At, value: u16) {
        Self::check(at, 2, true);
        self.write(at.address(), &value.to_le_bytes());
        let mut race = self.race.borrow_mut();
        if let Some((_, writes)) = race.take_if(|(when, _)| *when == at.address()) {
            for (at, value) in writes {
                self.write(at, &value.to_le_bytes());
            }
        }
    }
    fn store32(&self, at: At, value: u32) {
        Self::check(at, 4, true);
        self.write(at.address(), &value.to_le_bytes());
    }
    fn store64(&self, at: At, value: u64) {
        Self::check(at, 8, true);
        self.write(at.address(), &value.to_le_bytes());
    }
    fn copy(&self, from: At, to: At, bytes: u64) {
        Self::check(from, bytes, false);
        Self::check(to, bytes, true);
        let all = self.read(from.address(), bytes as usize);
        self.write(to.address(), &all);
    }
}

/// The VM's address space.
pub struct Vm;

impl Space for Vm {
    fn reach(&self, ipa: u64, access: Access) -> Option<(At, u64)> {
        let (start, at, size, writable) = *REGIONS
            .iter()
            .find(|(start, _, size, _)| (*start..start + size).contains(&ipa))?;
        if access == Access::Write && !writable {
            return None;
        }
        Some((At::new(at + (ipa - start)), size - (ipa - start)))
    }
}

/// EL2's address of an IPA.
pub fn reached(ipa: u64) -> u64 {
    Vm.reach(ipa, Access::Read).unwrap().0.address()
}

/// Writes to the guest's memory, byte by byte, so that regions may end anywhere.
pub fn put(ram: &Ram, ipa: u64, bytes: &[u8]) {
    for (ipa, byte) in (ipa..).zip(bytes) {
        ram.write(reached(ipa), &[*byte]);
    }
}

/// Reads it.
pub fn fetch(ram: &Ram, ipa: u64, bytes: usize) -> Vec<u8> {
    (ipa..)
        .take(bytes)
        .map(|ipa| ram.read(reached(ipa), 1)[0])
        .collect()
}

/// Entries of the guest's ring, and slots of the backend's.
pub const GUEST_SIZE: u16 = 8;
pub const SLOTS: u16 = 16;
pub const SLOT_BYTES: u32 = 256;
/// Bytes of the buffers of a descriptor: its part of the guest's memory.
pub const PART: u64 = 1536;
/// Most readable, and most writable bytes of a chain. Together they need 14 slots.
pub const LARGEST: u32 = 7 * SLOT_BYTES;

pub fn setup() -> Setup {
    let table = 0x4000_0000;
    let available = table + DESCRIPTOR * u64::from(GUEST_SIZE);
    let used = (available + available_bytes(GUEST_SIZE)).next_multiple_of(4);
    Setup {
        size: GUEST_SIZE,
        table,
        available,
        used,
    }
}

pub fn layout() -> Layout {
    let ring = Ring::new(0x1000, SLOTS);
    Layout {
        window: At::new(WINDOW.start),
        ring,
        size: SLOTS,
        slots: ring.end.next_multiple_of(64),
        slot_bytes: SLOT_BYTES,
    }
}

pub const POLICY: Policy = Policy {
    readable: LARGEST,
    writable: LARGEST,
    exact: true,
    replay: true,
};

/// The queue under test.
pub fn queue(ram: &Ram, features: Features, policy: Policy) -> Queue<'static> {
    let guest = GuestRing::new(&setup(), features, &Vm).unwrap();
    // For each case of a test, which are few.
    let slots = vec![Slot::NEW; SLOTS.into()].leak();
    let again = vec![0; SLOTS.into()].leak();
    let queue = Queue::new(guest, BackendRing::new(layout(), slots), policy, again);
    queue.begin_session(ram);
    queue
}

/// A request of the driver: what the device reads, and where it writes.
pub struct Request {
    pub readable: Vec<u8>,
    pub writable: Vec<(u64, u32)>,
}

impl Request {
    pub fn capacity(&self) -> u32 {
        self.writable.iter().map(|(_, len)| len).sum()
    }
}

/// What the backend answers to a request: any function of all that it reads.
pub fn answer(readable: &[u8], bytes: usize) -> Vec<u8> {
    let seed = readable.iter().fold(7u32, |all, byte| {
        all.wrapping_mul(31).wrapping_add(u32::from(*byte))
    });
    (0..bytes as u32)
        .map(|index| (seed ^ index.wrapping_mul(0x9e37)) as u8)
        .collect()
}

/// A driver that keeps to the rules.
pub struct Driver {
    pub features: Features,
    free: Vec<u16>,
    /// Descriptors of a request, by its head.
    pub waits: BTreeMap<u16, (Vec<u16>, Request)>,
    index: u16,
    used: u16,
    /// The index at the last notification.
    notified: u16,
    pub done: u32,
    pub dropped: u32,
    /// What lies behind the bytes that were written: what was there, or what the backend has left in its slots.
    rest: u8,
}

impl Driver {
    pub fn new(features: Features, exact: bool) -> Self {
        Self {
            rest: if exact { 0xee } else { 0xdd },
            features,
            free: (0..GUEST_SIZE).collect(),
            waits: BTreeMap::new(),
            index: 0,
            used: 0,
            notified: 0,
            done: 0,
            dropped: 0,
        }
    }

    /// The index that the device sees.
    pub const fn index(&self) -> u16 {
        self.index
    }

    /// Where the buffers of a descriptor are.
    fn part(number: u16) -> u64 {
        0x4000_0800 + PART * u64::from(number)
    }

    /// Makes a request of buffers with these lengths, some of them readable. `false`: no descriptor is free.
    pub fn request(
        &mut self,
        ram: &Ram,
        readable: &[u32],
        writable: &[u32],
        indirect: bool,
        seed: u8,
    ) -> bool {
        let count = readable.len() + writable.len();
        let needed = if indirect { 1 } else { count };
        if count == 0 || needed > self.free.len() {
            return false;
        }
        let numbers: Vec<u16> = self.free.drain(..needed).collect();
        let mut request = Request {
            readable: Vec::new(),
            writable: Vec::new(),
        };
        // An indirect table need not be aligned.
        let table = Self::part(numbers[0]) + 4;
        let mut next = table + DESCRIPTOR * count as u64;
        let lengths = readable
            .iter()
            .map(|len| (*len, false))
            .chain(writable.iter().map(|len| (*len, true)));
        for (index, (len, is_writable)) in lengths.enumerate() {
            let ipa = if indirect {
                let ipa = next;
                next += u64::from(len);
                ipa
            } else {
                Self::part(numbers[index])
            };
            if is_writable {
                put(ram, ipa, &vec![0xee; len as usize]);
                request.writable.push((ipa, len));
            } else {
                let bytes: Vec<u8> = (0..len).map(|at| seed.wrapping_add(at as u8)).collect();
                put(ram, ipa, &bytes);
                request.readable.extend(bytes);
            }
            let last = index + 1 == count;
            let flags = if last { 0 } else { NEXT } | if is_writable { WRITE } else { 0 };
            let (at, next) = if indirect {
                (table + DESCRIPTOR * index as u64, index as u16 + 1)
            } else {
                let at = setup().table + DESCRIPTOR * u64::from(numbers[index]);
                (at, numbers.get(index + 1).copied().unwrap_or(0))
            };
            descriptor(ram, at, ipa, len, flags, next);
        }
        if indirect {
            let at = setup().table + DESCRIPTOR * u64::from(numbers[0]);
            let bytes = DESCRIPTOR as u32 * count as u32;
            descriptor(ram, at, table, bytes, INDIRECT, 0);
        }
        let entry = setup().available + ENTRIES + 2 * u64::from(self.index % GUEST_SIZE);
        put(ram, entry, &numbers[0].to_le_bytes());
        self.index = self.index.wrapping_add(1);
        put(ram, setup().available + INDEX, &self.index.to_le_bytes());
        self.waits.insert(numbers[0], (numbers, request));
        true
    }

    /// Whether the driver has to notify the device of what it has added since it was asked last.
    pub fn notifies(&mut self, ram: &Ram) -> bool {
        let (new, old) = (self.index, self.notified);
        self.notified = new;
        if new == old {
            return false;
        }
        if self.features.event_idx {
            let event = setup().used + ring::avail_event(GUEST_SIZE);
            return ring::has_passed(ram.get16(reached(event)), new, old);
        }
        ram.get16(reached(setup().used)) & ring::NO_NOTIFY == 0
    }

    /// Takes what the device has given back, and checks it. Then asks for the next interrupt. `lens` are what the backend has answered.
    pub fn interrupt(&mut self, ram: &Ram) {
        loop {
            while ram.get16(reached(setup().used + INDEX)) != self.used {
                self.take(ram);
            }
            let event = setup().available + ring::used_event(GUEST_SIZE);
            put(ram, event, &self.used.to_le_bytes());
            if ram.get16(reached(setup().used + INDEX)) == self.used {
                break;
            }
        }
    }

    fn take(&mut self, ram: &Ram) {
        let entry = setup().used + ENTRIES + 8 * u64::from(self.used % GUEST_SIZE);
        let (head, len) = (
            ram.get32(reached(entry)) as u16,
            ram.get32(reached(entry + 4)),
        );
        self.used = self.used.wrapping_add(1);
        let (numbers, request) = self.waits.remove(&head).expect("a chain that waits, once");
        let mut found = Vec::new();
        for (ipa, bytes) in &request.writable {
            found.extend(fetch(ram, *ipa, *bytes as usize));
        }
        if len == 0 && request.capacity() != 0 {
            self.dropped += 1;
        } else {
            let written = answer(&request.readable, len as usize);
            assert_eq!(found[..len as usize], written, "what the backend wrote");
            let rest = &found[len as usize..];
            assert!(rest.iter().all(|byte| *byte == self.rest), "behind it");
        }
        self.free.extend(numbers);
        self.done += 1;
    }
}

fn descriptor(ram: &Ram, at: u64, ipa: u64, len: u32, flags: u16, next: u16) {
    put(ram, at, &ipa.to_le_bytes());
    put(ram, at + 8, &len.to_le_bytes());
    put(ram, at + 12, &flags.to_le_bytes());
    put(ram, at + 14, &next.to_le_bytes());
}

/// A chain as the backend finds it.
pub struct Found {
    pub head: u16,
    pub readable: Vec<u8>,
    pub writable: Vec<(u64, u32)>,
}

/// A backend that keeps to the rules.
pub struct Backend {
    seen: u16,
    used: u16,
    /// The index at the last time that EL2 was told.
    told: u16,
    pub has: Vec<Found>,
    pub exact: bool,
}

impl Backend {
    pub fn new(exact: bool) -> Self {
        Self {
            seen: 0,
            used: 0,
            told: 0,
            has: Vec::new(),
            exact,
        }
    }

    fn at(offset: u64) -> u64 {
        WINDOW.start + offset
    }

    /// Takes all chains that are there.
    pub fn look(&mut self, ram: &Ram) -> bool {
        let ring = layout().ring;
        let index = ram.get16(Self::at(ring.available + INDEX));
        let any = index != self.seen;
        while self.seen != index {
            let entry = ring.available + ENTRIES + 2 * u64::from(self.seen % SLOTS);
            let head = ram.get16(Self::at(entry));
            self.seen = self.seen.wrapping_add(1);
            let found = Self::walk(ram, head);
            self.has.push(found);
        }
        any
    }

    fn walk(ram: &Ram, head: u16) -> Found {
        let mut found = Found {
            head,
            readable: Vec::new(),
            writable: Vec::new(),
        };
        let mut number = head;
        for _ in 0..SLOTS {
            let at = Self::at(layout().ring.table + DESCRIPTOR * u64::from(number));
            let (offset, len) = (ram.get64(at), ram.get32(at + 8));
            let (flags, next) = (ram.get16(at + 12), ram.get16(at + 14));
            assert_eq!(
                offset,
                layout().slots + u64::from(SLOT_BYTES) * u64::from(number)
            );
            assert!(len <= SLOT_BYTES);
            if flags & WRITE != 0 {
                found.writable.push((Self::at(offset), len));
            } else {
                assert!(found.writable.is_empty(), "readable before writable");
                found
                    .readable
                    .extend(ram.read(Self::at(offset), len as usize));
            }
            if flags & NEXT == 0 {
                return found;
            }
            number = next;
        }
        panic!("a loop");
    }

    /// Answers one of the chains that it has; `part` of 256 of the capacity is written.
    pub fn answer(&mut self, ram: &Ram, which: usize, part: u8) {
        if self.has.is_empty() {
            return;
        }
        let found = self.has.remove(which % self.has.len());
        let capacity: u32 = found.writable.iter().map(|(_, len)| len).sum();
        let len = if capacity == 0 {
            0
        } else {
            (capacity * u32::from(part) / 255).max(1)
        };
        let mut bytes = answer(&found.readable, len as usize);
        if !self.exact {
            bytes.resize(capacity as usize, 0xdd);
        }
        for (at, len) in &found.writable {
            let some: Vec<u8> = bytes.drain(..bytes.len().min(*len as usize)).collect();
            ram.write(*at, &some);
        }
        self.give(ram, u32::from(found.head), len);
    }

    pub fn give(&mut self, ram: &Ram, head: u32, len: u32) {
        let used = layout().ring.used;
        let entry = Self::at(used + ENTRIES + 8 * u64::from(self.used % SLOTS));
        ram.write(entry, &head.to_le_bytes());
        ram.write(entry + 4, &len.to_le_bytes());
        self.used = self.used.wrapping_add(1);
    }

    /// Publishes what it has answered. `true`: EL2 wants to be told.
    pub fn publish(&mut self, ram: &Ram) -> bool {
        let (new, old) = (self.used, self.told);
        self.told = new;
        ram.write(
            Self::at(layout().ring.used + INDEX),
            &self.used.to_le_bytes(),
        );
        let event = layout().ring.available + ring::used_event(SLOTS);
        ring::has_passed(ram.get16(Self::at(event)), new, old)
    }

    /// Wants to be told of the next chain. `true`: there is one.
    pub fn sleep(&mut self, ram: &Ram) -> bool {
        let event = layout().ring.used + ring::avail_event(SLOTS);
        ram.write(Self::at(event), &self.seen.to_le_bytes());
        ram.get16(Self::at(layout().ring.available + INDEX)) != self.seen
    }
}

/// Memory of a guest at which somebody prints a byte for each that is read.
pub struct Printing<'a>(pub &'a Ram, pub &'a Streams);

impl Memory for Printing<'_> {
    fn load8(&self, at: At) -> u8 {
        assert!(self.1.output.pop().is_some());
        self.0.load8(at)
    }
    fn load16(&self, at: At) -> u16 {
        self.0.load16(at)
    }
    fn load32(&self, at: At) -> u32 {
        self.0.load32(at)
    }
    fn load64(&self, at: At) -> u64 {
        self.0.load64(at)
    }
    fn store8(&self, at: At, value: u8) {
        self.0.store8(at, value);
    }
    fn store16(&self, at: At, value: u16) {
        self.0.store16(at, value);
    }
    fn store32(&self, at: At, value: u32) {
        self.0.store32(at, value);
    }
    fn store64(&self, at: At, value: u64) {
        self.0.store64(at, value);
    }
    fn copy(&self, from: At, to: At, bytes: u64) {
        self.0.copy(from, to, bytes);
    }
}
