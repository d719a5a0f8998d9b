//! A device between a driver and a backend of which neither keeps to any rule.

use std::cell::RefCell;

use bulkhead_abi::device::{device_page, ring};
use bulkhead_abi::plan::PLAN_CONFIG;
use bulkhead_core::virtio::backend_ring::{Layout, Slot};
use bulkhead_core::virtio::config::Config;
use bulkhead_core::virtio::device::{Device, Kind, Planned, Store};
use bulkhead_core::virtio::memory::{Access, At, Memory, Space};
use bulkhead_core::virtio::queue::{Budget, Policy};
use bulkhead_core::virtio::requests::{Release, Requests};
use bulkhead_core::virtio::transport::{Effect, Offer, Page, Transport, feature, register};

use crate::Target;
use crate::engine::Input;

/// This target.
pub const TARGET: Target = Target {
    name: "virtio",
    seeds,
    words: &[],
    run,
};

/// The guest's memory: 4 KiB that it may write, 4 KiB that it may read. The window lies behind it at EL2.
const RAM: u64 = 0x4000_0000;
const WRITABLE: u64 = 0x1000;
const READABLE: u64 = 0x2000;
const WINDOW: u64 = 0x4000;
const WINDOW_BYTES: u64 = 0x4000;
/// Bytes of the page of registers, which has the config, too.
const REGISTERS: u64 = 0x1000;
/// Entries of the guest's queue, and slots.
const SIZE: u16 = 4;
const SLOTS: u16 = 8;
const SLOT_BYTES: u32 = 128;
/// Parts of the guest's queue in its memory, and of a buffer.
const TABLE: u64 = 0;
const AVAILABLE: u64 = 0x40;
const USED: u64 = 0x80;
const BUFFER: u64 = 0x200;

const OFFER: Offer = Offer {
    device: 2,
    features: feature::VERSION_1
        | feature::EVENT_IDX
        | feature::INDIRECT_DESC
        | feature::RING_RESET,
    queues: &[SIZE],
    config: &[1, 2, 3],
};

const SLICE: Budget = Budget::of(8, 300);

fn seeds() -> Vec<Vec<u8>> {
    // The backend is ready, a chain is posted, slices, the backend gives it back; a reset; a broken descriptor.
    vec![
        [
            [0, 0, 0, 0],
            [5, 0, 0, 0],
            [1, 8, 16, 0],
            [3, 1, 0, 0],
            [5, 0, 0, 0],
            [4, 0, 16, 0],
            [5, 0, 0, 0],
        ]
        .concat(),
        [
            [0, 0, 0, 0],
            [1, 200, 3, 2],
            [3, 1, 0, 0],
            [5, 0, 0, 0],
            [6, 0x70, 0, 0],
            [5, 0, 0, 0],
            [6, 0x70, 0, 0],
        ]
        .concat(),
        [
            [0, 0, 0, 0],
            [2, 0x40, 9, 3],
            [7, 0, 0, 1],
            [8, 0, 0, 0],
            [5, 0, 0, 0],
        ]
        .concat(),
        // A config, the same being changed, another one, and that of the plan.
        [
            [7, 0x40, 0, 9],
            [7, 2, 0, 2],
            [5, 0, 0, 0],
            [7, 2, 0, 3],
            [5, 0, 0, 0],
            [7, 2, 0, 4],
            [5, 0, 0, 0],
            [8, 0, 0, 0],
            [5, 0, 0, 0],
        ]
        .concat(),
        // Registers and the config in every width; a chain is posted, and the backend overwrites its table, the available ring and the device page.
        [
            [0, 0, 0, 0],
            [5, 0, 0, 0],
            [9, 2, 0, 0x70],
            [0x0b, 0, 0, 0],
            [9, 3, 1, 0],
            [0, 0, 0, 0],
            [9, 0, 0x0f, 0xff],
            [0, 0, 0, 0],
            [1, 8, 16, 0],
            [3, 1, 0, 0],
            [5, 0, 0, 0],
            [10, 0xff, 0, 8],
            [10, 0xff, 0, 0x82],
            [11, 0xff, 0, 0x10],
            [4, 0, 16, 0],
            [5, 0, 0, 0],
        ]
        .concat(),
    ]
}

struct Bytes(RefCell<Vec<u8>>);

impl Bytes {
    fn get(&self, at: u64, count: usize) -> u64 {
        let mut word = [0; 8];
        word[..count].copy_from_slice(&self.0.borrow()[at as usize..][..count]);
        u64::from_le_bytes(word)
    }

    fn put(&self, at: u64, count: usize, value: u64) {
        self.0.borrow_mut()[at as usize..][..count].copy_from_slice(&value.to_le_bytes()[..count]);
    }

    /// EL2's accesses: to the window, and to what the guest may access so itself.
    fn check(at: At, bytes: u64, write: bool) -> u64 {
        let (start, end) = (at.address(), at.address().checked_add(bytes).unwrap());
        let guest = end <= if write { WRITABLE } else { READABLE };
        let window = start >= WINDOW && end <= WINDOW + WINDOW_BYTES;
        assert!(guest || window, "{start:#x}..{end:#x} is nobody's");
        start
    }
}

impl Memory for Bytes {
    fn load8(&self, at: At) -> u8 {
        self.get(Self::check(at, 1, false), 1) as u8
    }
    fn load16(&self, at: At) -> u16 {
        self.get(Self::check(at, 2, false), 2) as u16
    }
    fn load32(&self, at: At) -> u32 {
        self.get(Self::check(at, 4, false), 4) as u32
    }
    fn load64(&self, at: At) -> u64 {
        self.get(Self::check(at, 8, false), 8)
    }
    fn store8(&self, at: At, value: u8) {
        self.put(Self::check(at, 1, true), 1, value.into());
    }
    fn store16(&self, at: At, value: u16) {
        self.put(Self::check(at, 2, true), 2, value.into());
    }
    fn store32(&self, at: At, value: u32) {
        self.put(Self::check(at, 4, true), 4, value.into());
    }
    fn store64(&self, at: At, value: u64) {
        self.put(Self::check(at, 8, true), 8, value);
    }
    fn copy(&self, from: At, to: At, bytes: u64) {
        let (from, to) = (
            Self::check(from, bytes, false),
            Self::check(to, bytes, true),
        );
        let mut all = self.0.borrow_mut();
        all.copy_within(from as usize..(from + bytes) as usize, to as usize);
    }
}

impl Space for Bytes {
    fn reach(&self, ipa: u64, access: Access) -> Option<(At, u64)> {
        let end = match access {
            Access::Read => READABLE,
            Access::Write => WRITABLE,
        };
        let at = ipa.checked_sub(RAM).filter(|at| *at < end)?;
        Some((At::new(at), end - at))
    }
}

struct Unread;

impl Page for Unread {
    fn set(&self, offset: u64, _: u32) {
        assert!(offset.is_multiple_of(4) && offset < 0x200);
    }

    /// All of them are there.
    fn get(&self, _: u64) -> u32 {
        1
    }
}

fn layout() -> Layout {
    let ring = ring::Ring::new(0x1000, SLOTS);
    Layout {
        window: At::new(WINDOW),
        ring,
        size: SLOTS,
        slots: 0x2000,
        slot_bytes: SLOT_BYTES,
    }
}

struct World<'a> {
    bytes: Bytes,
    device: Device<'a>,
    config: Config,
    requests: Requests,
    transport: Transport,
    /// The backend has overwritten EL2's half of the device page.
    spoilt: bool,
}

impl World<'_> {
    fn write(&mut self, offset: u64, bytes: u32, value: u32) {
        let effect = self.transport.write(&OFFER, &Unread, offset, bytes, value);
        match effect {
            Effect::Nothing => {}
            Effect::Start | Effect::Enable(_) => self.requests.start(),
            Effect::Reset => {
                if self.requests.release(Release::All) {
                    self.transport.reset(&OFFER, &Unread);
                }
            }
            Effect::Release(queue) => {
                if self.requests.release(Release::Queue(queue)) {
                    self.transport.release(queue, &OFFER, &Unread);
                }
            }
        }
    }

    fn set_up(&mut self) {
        self.write(register::DRIVER_FEATURES_SEL, 4, 0);
        self.write(register::DRIVER_FEATURES, 4, OFFER.features as u32);
        self.write(register::DRIVER_FEATURES_SEL, 4, 1);
        self.write(register::DRIVER_FEATURES, 4, (OFFER.features >> 32) as u32);
        self.write(register::STATUS, 4, 11);
        self.write(register::QUEUE_SEL, 4, 0);
        self.write(register::QUEUE_NUM, 4, SIZE.into());
        for (offset, part) in [
            (register::QUEUE_DESC, TABLE),
            (register::QUEUE_DRIVER, AVAILABLE),
            (register::QUEUE_DEVICE, USED),
        ] {
            self.write(offset, 4, (RAM + part) as u32);
            self.write(offset + 4, 4, 0);
        }
        self.write(register::QUEUE_READY, 4, 1);
        self.write(register::STATUS, 4, 15);
    }

    /// A slice, and what the shell does about it.
    fn slice(&mut self) -> bool {
        let mut more = false;
        self.follow(Some(At::new(WINDOW)));
        if self.requests.take_start() {
            let started =
                self.device
                    .start(&self.transport, &self.requests, &self.bytes, &self.bytes);
            more |= started.more;
            if started.failed {
                self.transport.fail(&Unread);
            }
        }
        let mut budget = SLICE;
        let outcome =
            self.device
                .slice(self.requests.look(), &self.bytes, &self.bytes, &mut budget);
        if outcome.failed {
            self.transport.fail(&Unread);
        }
        more | outcome.more
    }

    /// A change is told once, and a config that stays is not taken over again.
    fn follow(&mut self, window: Option<At>) {
        let plan = [0; PLAN_CONFIG];
        let mut changes = || self.config.follow(&self.bytes, window, &plan, &Unread);
        let changed = changes();
        assert!(!changes());
        assert!(self.config.tells(true) >= changed && !self.config.tells(true));
    }

    fn settle(&mut self) {
        for _ in 0..1000 {
            if !self.slice() && !self.requests.any() {
                return;
            }
        }
        panic!("the service thread does not come to rest");
    }

    /// The backend says that it has let go of everything.
    fn ready(&self) {
        let session = self.bytes.get(WINDOW + device_page::SESSION as u64, 4);
        self.bytes
            .put(WINDOW + device_page::READY as u64, 4, session);
    }

    fn descriptor(&self, index: u64, offset: u64, len: u64, flags: u16, next: u16) {
        let at = TABLE + 16 * index;
        self.bytes.put(at, 8, RAM.wrapping_add(offset));
        self.bytes.put(at + 8, 4, len);
        self.bytes.put(at + 12, 2, flags.into());
        self.bytes.put(at + 14, 2, next.into());
    }

    /// Both sides keep to the rules from now on: a reset, and a request that comes back.
    fn recovers(&mut self) {
        self.transport.fail(&Unread);
        for _ in 0..20 {
            self.write(register::STATUS, 4, 0);
            self.settle();
        }
        assert!(!self.transport.is_driven() && self.device.has_let_go());
        if self.spoilt {
            // It cannot know any more which session that is: its next life does, whose memory is zeros.
            self.bytes.0.borrow_mut()[WINDOW as usize..].fill(0);
            self.device.show(&self.bytes);
        }
        self.bytes.0.borrow_mut()[..0x200].fill(0);
        self.bytes.put(WINDOW + device_page::RESTART as u64, 4, 0);
        self.set_up();
        assert!(self.transport.is_driven());
        self.descriptor(0, BUFFER, 200, ring::NEXT, 1);
        self.descriptor(1, BUFFER + 256, 200, ring::WRITE, 0);
        self.bytes.put(AVAILABLE + ring::INDEX, 2, 1);
        self.settle();
        self.ready();
        self.settle();
        assert!(self.device.is_live());
        let queue = layout().ring;
        assert_eq!(self.bytes.get(WINDOW + queue.available + ring::INDEX, 2), 1);
        let head = self.bytes.get(WINDOW + queue.available + ring::ENTRIES, 2);
        self.bytes.put(WINDOW + queue.used + ring::ENTRIES, 4, head);
        self.bytes
            .put(WINDOW + queue.used + ring::ENTRIES + 4, 4, 200);
        self.bytes.put(WINDOW + queue.used + ring::INDEX, 2, 1);
        self.settle();
        assert_eq!(self.bytes.get(USED + ring::INDEX, 2), 1, "it comes back");
        assert_eq!(self.bytes.get(USED + ring::ENTRIES, 8), 200 << 32);
    }
}

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (mut slots, mut again) = (vec![Slot::NEW; SLOTS.into()], vec![0; SLOTS.into()]);
    let first = input.u8();
    let policy = Policy {
        readable: 4 * SLOT_BYTES,
        writable: 4 * SLOT_BYTES,
        exact: first & 1 == 0,
        replay: first & 2 == 0,
    };
    let kind = Kind {
        polled: first & 4 != 0,
        resets: first & 8 != 0,
    };
    let planned = Planned {
        layout: layout(),
        policy,
    };
    let store = Store {
        slots: &mut slots,
        again: &mut again,
    };
    let queues = [(planned, store)].into_iter();
    let mut world = World {
        bytes: Bytes(RefCell::new(vec![0; (WINDOW + WINDOW_BYTES) as usize])),
        device: Device::new(kind, At::new(WINDOW), queues),
        config: Config::new(),
        requests: Requests::new(),
        transport: Transport::new(),
        spoilt: false,
    };
    world.device.show(&world.bytes);
    world.set_up();
    while !input.is_empty() {
        let (kind, one, two, three) = (input.u8(), input.u8(), input.u8(), input.u8());
        let wide = u64::from(two) << 8 | u64::from(three);
        match kind % 12 {
            0 => world.ready(),
            1 => world.descriptor(
                u64::from(one) % u64::from(SIZE),
                u64::from(one & 0xfc) * 33,
                u64::from(two) * 3,
                u16::from(three & 7),
                u16::from(three >> 3),
            ),
            2 => world.bytes.put(u64::from(one), 2, wide),
            3 => {
                let index = world.bytes.get(AVAILABLE + ring::INDEX, 2);
                world.bytes.put(
                    AVAILABLE + ring::INDEX,
                    2,
                    index.wrapping_add(u64::from(one % 6)),
                );
            }
            4 => {
                let used = WINDOW + layout().ring.used;
                let index = world.bytes.get(used + ring::INDEX, 2);
                let entry = used + ring::ENTRIES + 8 * (index % u64::from(SLOTS));
                world.bytes.put(entry, 4, u64::from(one));
                world.bytes.put(entry + 4, 4, wide);
                world
                    .bytes
                    .put(used + ring::INDEX, 2, index.wrapping_add(1));
            }
            5 => {
                world.slice();
            }
            6 => world.write(u64::from(one), 4, wide as u32),
            7 => world
                .bytes
                .put(WINDOW + 0x800 + 4 * u64::from(one), 4, wide),
            // A register, or what is none, in every width.
            9 => world.write(wide % REGISTERS, 1 << (one & 3), input.u32()),
            // All of the window is memory of the backend's VM: the ring that EL2 writes, and whatever else.
            10 | 11 => {
                let ring = layout().ring;
                let at = match kind % 12 {
                    10 => ring.table + wide % (ring.end - ring.table),
                    _ => wide % WINDOW_BYTES,
                };
                world.bytes.put(WINDOW + at, 1, u64::from(one));
                world.spoilt |= at < device_page::BACKEND as u64;
            }
            _ => {
                world.device.end_session();
                world.follow(None);
            }
        }
    }
    world.settle();
    world.recovers();
}
