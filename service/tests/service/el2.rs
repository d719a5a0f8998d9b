//! EL2 as a backend sees it: it fills device pages, begins sessions, and is the driver of the queues in windows.

use std::collections::BTreeMap;

use bulkhead_abi::device::device_page as page;
use bulkhead_abi::device::ring::{self, Ring};
use bulkhead_abi::device::{MAX_QUEUES, backend_page};
use bulkhead_service::memory::Memory;

use crate::memory::TestMemory;

/// Bytes of a slot.
pub const SLOT: u32 = 2048;
/// Where the queues of a window are, and where the slots start.
const RINGS: u64 = 0x1000;
const RING: u64 = 0x2000;

pub fn window_bytes(queues: usize, size: u16) -> usize {
    (RINGS + RING * queues as u64 + queues as u64 * u64::from(size) * u64::from(SLOT)) as usize
}

/// The driver's side of a queue.
pub struct Driver {
    memory: TestMemory,
    pub ring: Ring,
    pub size: u16,
    areas: u64,
    free: Vec<u16>,
    pub available: u16,
    told: u16,
    pub used: u16,
    /// Outstanding chains: their writable pieces, and their descriptors.
    out: BTreeMap<u16, Chain>,
}

type Chain = (Vec<(u64, u32)>, Vec<u16>);

/// A chain that came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Back {
    pub head: u16,
    pub bytes: u32,
    pub written: Vec<u8>,
}

impl Driver {
    pub fn new(memory: &TestMemory, table: u64, size: u16, areas: u64) -> Self {
        let ring = Ring::new(table, size);
        memory.zero(table, ring.end - table).unwrap();
        Self {
            memory: memory.clone(),
            ring,
            size,
            areas,
            free: (0..size).collect(),
            available: 0,
            told: 0,
            used: 0,
            out: BTreeMap::new(),
        }
    }

    /// Makes a chain available; `None` if there are too few descriptors.
    pub fn add(&mut self, readable: &[&[u8]], writable: &[u32]) -> Option<u16> {
        let count = readable.len() + writable.len();
        if count == 0 || count > self.free.len() {
            return None;
        }
        let numbers: Vec<u16> = self.free.drain(..count).collect();
        let mut into = Vec::new();
        for (place, number) in numbers.iter().enumerate() {
            let area = self.areas + u64::from(*number) * u64::from(SLOT);
            let mut flags = if place + 1 < count { ring::NEXT } else { 0 };
            let bytes = match readable.get(place) {
                Some(bytes) => {
                    self.memory.write(area, bytes).unwrap();
                    bytes.len() as u32
                }
                None => {
                    flags |= ring::WRITE;
                    let bytes = writable[place - readable.len()];
                    self.memory
                        .write(area, &vec![0xee; bytes as usize])
                        .unwrap();
                    into.push((area, bytes));
                    bytes
                }
            };
            let at = self.ring.table + u64::from(*number) * ring::DESCRIPTOR;
            let next = numbers.get(place + 1).copied().unwrap_or(0xabc);
            self.memory.store64(at, area).unwrap();
            self.memory
                .store32(at + ring::DESCRIPTOR_LEN, bytes)
                .unwrap();
            self.memory
                .store16(at + ring::DESCRIPTOR_FLAGS, flags)
                .unwrap();
            self.memory
                .store16(at + ring::DESCRIPTOR_NEXT, next)
                .unwrap();
        }
        let head = numbers[0];
        let entry = u64::from(self.available % self.size) * ring::AVAILABLE_ENTRY;
        let at = self.ring.available + ring::ENTRIES + entry;
        self.memory.store16(at, head).unwrap();
        self.out.insert(head, (into, numbers));
        self.available = self.available.wrapping_add(1);
        self.memory
            .store16(self.ring.available + ring::INDEX, self.available)
            .unwrap();
        Some(head)
    }

    /// Whether the device is to be told of what was added since the last call.
    pub fn kick(&mut self) -> bool {
        let at = self.ring.used + ring::avail_event(self.size);
        let event = self.memory.load16(at).unwrap();
        let old = std::mem::replace(&mut self.told, self.available);
        old != self.available && ring::has_passed(event, self.available, old)
    }

    /// Index of the used ring.
    pub fn index(&self) -> u16 {
        self.memory.load16(self.ring.used + ring::INDEX).unwrap()
    }

    /// Takes what came back, and asks to be told of the next.
    pub fn take(&mut self) -> Vec<Back> {
        let index = self.index();
        let mut back = Vec::new();
        while self.used != index {
            let entry = u64::from(self.used % self.size) * ring::USED_ENTRY;
            let at = self.ring.used + ring::ENTRIES + entry;
            let head = self.memory.load32(at).unwrap() as u16;
            let bytes = self.memory.load32(at + 4).unwrap();
            let (into, numbers) = self.out.remove(&head).expect("an outstanding chain");
            let space: u32 = into.iter().map(|(_, bytes)| bytes).sum();
            assert!(bytes <= space, "{bytes} written to {space}");
            let written = into
                .iter()
                .flat_map(|(at, bytes)| self.memory.bytes_of(*at, u64::from(*bytes)));
            let written = written.collect();
            back.push(Back {
                head,
                bytes,
                written,
            });
            self.free.extend(numbers);
            self.used = self.used.wrapping_add(1);
        }
        let event = self.ring.available + ring::used_event(self.size);
        self.memory.store16(event, self.used).unwrap();
        back
    }
}

/// EL2's side of a device.
pub struct Device {
    pub memory: TestMemory,
    page: TestMemory,
    pub index: u32,
    pub session: u32,
    pub live: u32,
    sizes: Vec<u16>,
    pub queues: Vec<Driver>,
}

pub struct Plan<'a> {
    pub id: u32,
    pub index: u32,
    pub unit: u32,
    pub offered: u64,
    pub config: &'a [u8],
    pub sizes: &'a [u16],
}

/// The bytes of a backend's page, with its interrupt.
pub fn backend_page() -> TestMemory {
    TestMemory::new(64)
}

/// Tells a backend; returns whether that makes its interrupt pending.
pub fn tell(page: &TestMemory, index: u32) -> bool {
    let news = backend_page::NEWS as u64;
    let bits = page.load64(news).unwrap();
    page.store64(news, bits | 1 << index).unwrap();
    let armed = page.load32(backend_page::ARMED as u64).unwrap();
    page.store32(backend_page::ARMED as u64, 0).unwrap();
    armed == 1
}

impl Device {
    pub fn new(page: &TestMemory, plan: &Plan) -> Self {
        let largest = plan.sizes.iter().copied().max().unwrap_or(0);
        let memory = TestMemory::new(window_bytes(plan.sizes.len(), largest));
        for (at, value) in [
            (page::VERSION, page::VERSION_VALUE),
            (page::DEVICE_ID, plan.id),
            (page::QUEUES, plan.sizes.len() as u32),
            (page::INDEX, plan.index),
            (page::WINDOW, memory.bytes() as u32),
            (page::UNIT, plan.unit),
            (page::CONFIG_BYTES, plan.config.len() as u32),
            (page::SESSION, 1),
        ] {
            memory.store32(at as u64, value).unwrap();
        }
        memory.store64(page::OFFERED as u64, plan.offered).unwrap();
        memory.write(page::CONFIG as u64, plan.config).unwrap();
        memory
            .store32(page::MAGIC as u64, page::MAGIC_VALUE)
            .unwrap();
        Self {
            memory,
            page: page.clone(),
            index: plan.index,
            session: 1,
            live: 0,
            sizes: plan.sizes.to_vec(),
            queues: Vec::new(),
        }
    }

    pub fn tell(&self) -> bool {
        tell(&self.page, self.index)
    }

    /// Begins a new session.
    pub fn reset(&mut self) {
        self.session += 1;
        self.memory
            .store32(page::SESSION as u64, self.session)
            .unwrap();
        self.queues.clear();
        self.tell();
    }

    pub fn word(&self, at: usize) -> u32 {
        self.memory.load32(at as u64).unwrap()
    }

    /// Makes the rings if the backend is ready for them, or begins a session if it asks for one.
    pub fn go_on(&mut self, features: u64) -> bool {
        if self.word(page::RESTART) == self.session {
            self.reset();
        }
        if self.live == self.session || self.word(page::READY) != self.session {
            return false;
        }
        for (number, size) in self.sizes.iter().enumerate() {
            let at = page::QUEUE + number * page::QUEUE_STRIDE;
            let table = RINGS + RING * number as u64;
            let largest = self.sizes.iter().copied().max().unwrap();
            let areas = RINGS
                + RING * self.sizes.len() as u64
                + number as u64 * u64::from(largest) * u64::from(SLOT);
            for (part, value) in [
                (page::QUEUE_TABLE, table as u32),
                (page::QUEUE_SIZE, u32::from(*size)),
                (page::QUEUE_ENABLED, 1),
                (page::QUEUE_SLOT, SLOT),
                (page::QUEUE_SLOTS, areas as u32),
            ] {
                self.memory.store32((at + part) as u64, value).unwrap();
            }
            self.queues
                .push(Driver::new(&self.memory, table, *size, areas));
        }
        assert!(self.sizes.len() <= MAX_QUEUES);
        self.memory
            .store64(page::FEATURES as u64, features)
            .unwrap();
        self.live = self.session;
        self.memory.store32(page::LIVE as u64, self.live).unwrap();
        self.tell();
        true
    }
}
