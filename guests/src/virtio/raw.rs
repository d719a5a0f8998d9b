//! A virtio disk driven by hand: registers as they are, and a queue in which everything can be wrong.

use super::{PAGE, take};
use crate::area::Area;
use crate::board::{Device, Range};
use crate::mmio::{read32, write32};
use crate::timer;
use bulkhead_abi::device::ring;
use bulkhead_service::memory::Memory;
use core::array::from_fn;
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// Registers (VIRTIO 1.2, 4.2.2).
pub mod register {
    /// The word of offered features that is selected.
    pub const DEVICE_FEATURES: usize = 0x010;
    /// Selects it.
    pub const DEVICE_FEATURES_SEL: usize = 0x014;
    /// The word of features that the driver takes.
    pub const DRIVER_FEATURES: usize = 0x020;
    /// Selects it.
    pub const DRIVER_FEATURES_SEL: usize = 0x024;
    /// Selects a queue.
    pub const QUEUE_SEL: usize = 0x030;
    /// Most entries of it.
    pub const QUEUE_NUM_MAX: usize = 0x034;
    /// Its entries.
    pub const QUEUE_NUM: usize = 0x038;
    /// Whether it is in use.
    pub const QUEUE_READY: usize = 0x044;
    /// A queue has new chains.
    pub const QUEUE_NOTIFY: usize = 0x050;
    /// Why the device interrupts.
    pub const INTERRUPT_STATUS: usize = 0x060;
    /// Clears bits of it.
    pub const INTERRUPT_ACK: usize = 0x064;
    /// Status.
    pub const STATUS: usize = 0x070;
    /// Descriptor table, lower half; the upper one follows, as with the next two.
    pub const QUEUE_DESC: usize = 0x080;
    /// Available ring.
    pub const QUEUE_DRIVER: usize = 0x090;
    /// Used ring.
    pub const QUEUE_DEVICE: usize = 0x0a0;
    /// The config.
    pub const CONFIG: usize = 0x100;
}

/// Bits of [`register::STATUS`].
pub mod status {
    /// The driver has set its features, and the device takes them.
    pub const FEATURES_OK: u32 = 8;
    /// The driver drives the device.
    pub const DRIVER_OK: u32 = 4;
    /// The device cannot go on.
    pub const NEEDS_RESET: u32 = 64;
}

/// Bit of [`register::INTERRUPT_STATUS`]: the config has changed, or the device cannot go on.
pub const CONFIG_CHANGED: u32 = 2;
/// VIRTIO_F_VERSION_1.
pub const VERSION_1: u64 = 1 << 32;
/// VIRTIO_F_INDIRECT_DESC.
pub const INDIRECT_DESC: u64 = 1 << 28;
/// Entries of the queue.
pub const SIZE: u16 = 64;

/// Where the memory of the driver has what.
pub mod place {
    /// The descriptor table.
    pub const TABLE: u64 = 0;
    /// The available ring.
    pub const AVAILABLE: u64 = 0x1000;
    /// The used ring.
    pub const USED: u64 = 0x2000;
    /// An indirect table.
    pub const INDIRECT: u64 = 0x3000;
    /// A second one.
    pub const SECOND: u64 = 0x3800;
    /// The header of a request.
    pub const HEADER: u64 = 0x4000;
    /// Its status.
    pub const ANSWER: u64 = 0x4100;
    /// Bytes that no request names.
    pub const CANARY: u64 = 0x5000;
    /// Bytes of that.
    pub const CANARY_BYTES: u64 = 0x1000;
    /// Its data.
    pub const DATA: u64 = 0x6000;
    /// Bytes of that.
    pub const DATA_BYTES: u64 = 0x8000;
    /// Bytes of all that.
    pub const BYTES: u64 = DATA + DATA_BYTES;
}

/// What a place of the canary holds.
const CANARY: u64 = 0xc0de_ca5e_1234_5678;
/// Bytes of a sector.
pub const SECTOR: u32 = 512;
/// What an answer is before it is there.
const NO_ANSWER: u8 = 0xee;
/// Milliseconds until a device has done what it has to do.
const PATIENCE: u64 = 2000;

/// Addresses of the registers and of the memory of the latest driver.
static LATEST: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// A disk and a queue.
pub struct Raw {
    /// Address of the registers.
    pub base: usize,
    /// The memory, as [`place`] says.
    pub memory: Area,
    /// Index behind the last entry of the available ring.
    next: u16,
    /// Entries of the used ring that were seen.
    used: u16,
}

impl Raw {
    /// A driver that has done nothing yet; `None` without memory for it.
    pub fn new(device: Device) -> Option<Self> {
        let base = take(place::BYTES as usize / PAGE)?
            .as_ptr()
            .expose_provenance();
        LATEST[0].store(device.base, Relaxed);
        LATEST[1].store(base, Release);
        Self::beside()
    }

    /// One more driver of the device that [`new`](Self::new) was called for last, with the same memory: that of another
    /// CPU. `None` if there is none.
    pub fn beside() -> Option<Self> {
        let base = LATEST[1].load(Acquire);
        // The pages are never given back, and are only those of drivers of this device.
        let memory = Area::new(Range {
            base,
            size: place::BYTES as usize,
        })?;
        Some(Self {
            base: LATEST[0].load(Relaxed),
            memory,
            next: 0,
            used: 0,
        })
    }

    /// A register.
    pub fn get(&self, offset: usize) -> u32 {
        read32(self.base + offset)
    }

    /// Writes a register.
    pub fn set(&self, offset: usize, value: u32) {
        write32(self.base + offset, value);
    }

    fn set_address(&self, offset: usize, value: u64) {
        self.set(offset, value as u32);
        self.set(offset + 4, (value >> 32) as u32);
    }

    /// The address of a place, as the device sees it.
    pub fn address(&self, place: u64) -> u64 {
        self.memory.address() + place
    }

    /// Resets the device; returns whether it says so.
    pub fn reset(&mut self) -> bool {
        self.set(register::STATUS, 0);
        wait(|| self.get(register::STATUS) == 0)
    }

    /// The features that the device offers.
    pub fn offered(&self) -> u64 {
        let word = |number| {
            self.set(register::DEVICE_FEATURES_SEL, number);
            u64::from(self.get(register::DEVICE_FEATURES))
        };
        word(0) | word(1) << 32
    }

    /// Takes features, and says so. Returns whether the device takes them, too.
    pub fn take_features(&self, features: u64) -> bool {
        self.set(register::STATUS, 1);
        self.set(register::STATUS, 3);
        for (number, word) in [(0, features as u32), (1, (features >> 32) as u32)] {
            self.set(register::DRIVER_FEATURES_SEL, number);
            self.set(register::DRIVER_FEATURES, word);
        }
        self.set(register::STATUS, 3 | status::FEATURES_OK);
        self.get(register::STATUS) & status::FEATURES_OK != 0
    }

    /// Says where the queue is, and enables it.
    pub fn set_queue(&self, size: u32, table: u64, available: u64, used: u64) {
        self.set(register::QUEUE_SEL, 0);
        self.set(register::QUEUE_NUM, size);
        self.set_address(register::QUEUE_DESC, table);
        self.set_address(register::QUEUE_DRIVER, available);
        self.set_address(register::QUEUE_DEVICE, used);
        self.set(register::QUEUE_READY, 1);
    }

    /// Enables the queue where it belongs, empty.
    pub fn set_usual_queue(&mut self) {
        self.clear();
        let at = |place| self.address(place);
        let (table, available, used) = (at(place::TABLE), at(place::AVAILABLE), at(place::USED));
        self.set_queue(SIZE.into(), table, available, used);
    }

    /// Drives the device from now on.
    pub fn drive(&self) {
        self.set(
            register::STATUS,
            3 | status::FEATURES_OK | status::DRIVER_OK,
        );
    }

    /// Resets the device and drives it with those of its features that are among `features`.
    pub fn start(&mut self, features: u64) -> bool {
        let reset = self.reset();
        let taken = self.take_features(self.offered() & (features | VERSION_1));
        self.set_usual_queue();
        self.drive();
        reset && taken
    }

    /// Empties the memory, but for the canary.
    fn clear(&mut self) {
        zero(&self.memory, 0, place::BYTES);
        for at in (place::CANARY..)
            .step_by(8)
            .take(place::CANARY_BYTES as usize / 8)
        {
            store64(&self.memory, at, CANARY);
        }
        (self.next, self.used) = (0, 0);
    }

    /// Whether nobody has written where no request is.
    pub fn is_canary_whole(&self) -> bool {
        let mut places = (place::CANARY..)
            .step_by(8)
            .take(place::CANARY_BYTES as usize / 8);
        places.all(|at| self.memory.load64(at) == Ok(CANARY))
    }

    /// Writes a descriptor of the table at `table`.
    pub fn describe(
        &self,
        table: u64,
        number: u16,
        address: u64,
        bytes: u32,
        flags: u16,
        next: u16,
    ) {
        let at = table + u64::from(number) * ring::DESCRIPTOR;
        let rest = u64::from(bytes) | u64::from(flags) << 32 | u64::from(next) << 48;
        store64(&self.memory, at, address);
        store64(&self.memory, at + 8, rest);
    }

    /// Writes three descriptors of the table at `table`: a request to read the first sector.
    pub fn describe_read(&self, table: u64) {
        zero(&self.memory, place::HEADER, 16);
        let answer = self.memory.write(place::ANSWER, &[NO_ANSWER]);
        assert!(answer.is_ok());
        let at = |place| self.address(place);
        self.describe(table, 0, at(place::HEADER), 16, ring::NEXT, 1);
        let both = ring::NEXT | ring::WRITE;
        self.describe(table, 1, at(place::DATA), SECTOR, both, 2);
        self.describe(table, 2, at(place::ANSWER), 1, ring::WRITE, 0);
    }

    /// Puts a head into the available ring, without saying so.
    pub fn put(&mut self, head: u16) {
        let entry = u64::from(self.next % SIZE) * ring::AVAILABLE_ENTRY;
        store16(&self.memory, place::AVAILABLE + ring::ENTRIES + entry, head);
        self.next = self.next.wrapping_add(1);
    }

    /// Says that `more` heads more than were put are there, and notifies the device.
    pub fn show(&mut self, more: u16) {
        crate::sysreg::dsb();
        self.next = self.next.wrapping_add(more);
        store16(&self.memory, place::AVAILABLE + ring::INDEX, self.next);
        crate::sysreg::dsb();
        self.set(register::QUEUE_NOTIFY, 0);
    }

    /// Makes a chain available.
    pub fn offer(&mut self, head: u16) {
        self.put(head);
        self.show(0);
    }

    /// Number of chains that have come back since it was asked last.
    pub fn take_used(&mut self) -> u16 {
        let index = load16(&self.memory, place::USED + ring::INDEX);
        crate::sysreg::dsb();
        index.wrapping_sub(core::mem::replace(&mut self.used, index))
    }

    /// Reads the first sector; returns the sum of its bytes, `None` if that does not work.
    pub fn read(&mut self) -> Option<u64> {
        self.read_by(self.address(place::HEADER))
    }

    /// [`read`](Self::read), with a header of zeros that is at `header`.
    pub fn read_by(&mut self, header: u64) -> Option<u64> {
        self.describe_read(place::TABLE);
        self.describe(place::TABLE, 0, header, 16, ring::NEXT, 1);
        if self.ask() != Some(0) {
            return None;
        }
        let words = (place::DATA..).step_by(8).take(SECTOR as usize / 8);
        Some(words.fold(0, |sum: u64, at| {
            sum.rotate_left(7) ^ self.memory.load64(at).unwrap_or(0)
        }))
    }

    /// Offers the chain that begins with the first descriptor; returns its status, `None` unless it alone comes back.
    pub fn ask(&mut self) -> Option<u8> {
        self.take_used();
        self.offer(0);
        let index = place::USED + ring::INDEX;
        let came = wait(|| load16(&self.memory, index) != self.used);
        let mut answer = [NO_ANSWER];
        let read = self.memory.read(place::ANSWER, &mut answer);
        (came && self.take_used() == 1 && read.is_ok()).then_some(answer[0])
    }

    /// Whether the device, reset and driven with those of its features that are among `features`, is as it was when its
    /// registers read `before` and the first sector had the sum `sector`.
    pub fn works(&mut self, features: u64, sector: u64, before: &Page) -> Result<(), &'static str> {
        let check = |holds: bool, why| if holds { Ok(()) } else { Err(why) };
        check(self.is_canary_whole(), "it has written elsewhere")?;
        check(self.start(features), "it does not start again")?;
        check(Page::of(self) == *before, "its registers read otherwise")?;
        let status = 3 | status::FEATURES_OK | status::DRIVER_OK;
        check(
            self.get(register::STATUS) == status,
            "its status is another",
        )?;
        let read = self.read().ok_or("it does not read again")?;
        check(read == sector, "it reads something else")?;
        check(self.is_canary_whole(), "it has written elsewhere at last")
    }

    /// Whether the device says, now or soon, that it cannot go on.
    pub fn needs_reset(&self) -> bool {
        wait(|| self.get(register::STATUS) & status::NEEDS_RESET != 0)
    }
}

/// What the registers read that no driver changes.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    names: [u32; 4],
    features: u64,
    most: u32,
    config: [u32; 8],
}

impl Page {
    /// What they read now.
    pub fn of(raw: &Raw) -> Self {
        let words = |start: usize| move |number: usize| raw.get(start + number * 4);
        raw.set(register::QUEUE_SEL, 0);
        Self {
            names: from_fn(words(0)),
            features: raw.offered(),
            most: raw.get(register::QUEUE_NUM_MAX),
            config: from_fn(words(register::CONFIG)),
        }
    }
}

/// Waits in a loop, but not for ever.
fn wait(condition: impl Fn() -> bool) -> bool {
    let end = timer::now() + timer::frequency() / 1000 * PATIENCE;
    while !condition() {
        if timer::now() > end {
            return false;
        }
    }
    true
}

// Places are inside the memory: a program that names others has a defect.

fn store64(memory: &Area, at: u64, value: u64) {
    assert!(memory.store64(at, value).is_ok(), "outside the memory");
}

fn store16(memory: &Area, at: u64, value: u16) {
    assert!(memory.store16(at, value).is_ok(), "outside the memory");
}

fn load16(memory: &Area, at: u64) -> u16 {
    memory.load16(at).expect("outside the memory")
}

fn zero(memory: &Area, at: u64, bytes: u64) {
    assert!(memory.zero(at, bytes).is_ok(), "outside the memory");
}
