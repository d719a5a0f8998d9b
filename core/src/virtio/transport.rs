//! The registers of a virtio-mmio device, version 2 (VIRTIO 1.2, 4.2.2), of any type. The guest reads them in a page that EL2 keeps true; its writes
//! come here.

use core::sync::atomic::{Ordering, fence};

use bulkhead_abi::device::{MAX_CONFIG, MAX_QUEUES};

use super::guest_ring::{Features, GuestRing, Setup};
use super::memory::Space;

/// Offsets of the registers.
pub mod register {
    /// "virt".
    pub const MAGIC_VALUE: u64 = 0x000;
    /// 2.
    pub const VERSION: u64 = 0x004;
    /// Type of the device.
    pub const DEVICE_ID: u64 = 0x008;
    /// Who has made it.
    pub const VENDOR_ID: u64 = 0x00c;
    /// The word of offered features that is selected.
    pub const DEVICE_FEATURES: u64 = 0x010;
    /// Selects it.
    pub const DEVICE_FEATURES_SEL: u64 = 0x014;
    /// The word of features that the driver takes, as selected.
    pub const DRIVER_FEATURES: u64 = 0x020;
    /// Selects it.
    pub const DRIVER_FEATURES_SEL: u64 = 0x024;
    /// Selects a queue.
    pub const QUEUE_SEL: u64 = 0x030;
    /// Most entries of the queue.
    pub const QUEUE_NUM_MAX: u64 = 0x034;
    /// Its entries.
    pub const QUEUE_NUM: u64 = 0x038;
    /// Whether it is in use.
    pub const QUEUE_READY: u64 = 0x044;
    /// The queue with this number has new chains.
    pub const QUEUE_NOTIFY: u64 = 0x050;
    /// [`super::super::interrupt::InterruptStatus`].
    pub const INTERRUPT_STATUS: u64 = 0x060;
    /// Clears bits of it.
    pub const INTERRUPT_ACK: u64 = 0x064;
    /// Status of the device.
    pub const STATUS: u64 = 0x070;
    /// Descriptor table of the queue, lower half; the upper one follows.
    pub const QUEUE_DESC: u64 = 0x080;
    /// Available ring of the queue, likewise.
    pub const QUEUE_DRIVER: u64 = 0x090;
    /// Used ring of the queue, likewise.
    pub const QUEUE_DEVICE: u64 = 0x0a0;
    /// Length of the selected shared memory region, likewise: all ones for none.
    pub const SHM_LEN: u64 = 0x0b0;
    /// Its address, likewise.
    pub const SHM_BASE: u64 = 0x0b8;
    /// Resets the queue.
    pub const QUEUE_RESET: u64 = 0x0c0;
    /// Changes with the config.
    pub const CONFIG_GENERATION: u64 = 0x0fc;
    /// The config.
    pub const CONFIG: u64 = 0x100;
}

/// Bits of the status (2.1).
pub mod status {
    /// The driver has set its features.
    pub const FEATURES_OK: u32 = 8;
    /// The driver drives the device.
    pub const DRIVER_OK: u32 = 4;
    /// The device cannot go on.
    pub const NEEDS_RESET: u32 = 64;
    /// All bits that a driver may set.
    pub const DRIVER: u32 = 1 | 2 | DRIVER_OK | FEATURES_OK | 128;
}

/// Features of any device (6).
pub mod feature {
    /// Indirect descriptors.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// `used_event` and `avail_event`.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// Not a device of before VIRTIO 1.0.
    pub const VERSION_1: u64 = 1 << 32;
    /// A queue can be reset by itself.
    pub const RING_RESET: u64 = 1 << 40;
}

/// "virt".
const MAGIC: u32 = u32::from_le_bytes(*b"virt");
/// Bulkhead's VendorID: "BLKH".
const VENDOR: u32 = u32::from_le_bytes(*b"BLKH");

/// What the plan says about a device.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// Its type.
    pub device: u32,
    /// The features that it offers, VERSION_1 among them.
    pub features: u64,
    /// For each queue the most entries that it may have.
    pub queues: &'a [u16],
    /// Its config.
    pub config: &'a [u8],
}

/// The page that the guest reads.
pub trait Page {
    /// Writes a register.
    fn set(&self, offset: u64, value: u32);

    /// Reads one: only EL2 writes them.
    fn get(&self, offset: u64) -> u32;
}

/// What follows from a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Nothing,
    /// The driver drives the device now.
    Start,
    /// A queue of a device that is driven was enabled anew.
    Enable(u16),
    /// The write completes when nobody uses the device's queues any more: then [`Transport::reset`] follows, and until then the guest
    /// repeats it.
    Reset,
    /// The same for one queue, and [`Transport::release`].
    Release(u16),
}

#[derive(Clone, Copy, Debug, Default)]
struct QueueRegisters {
    setup: Setup,
    ready: bool,
}

/// The registers that a driver writes. One vCPU at a time uses them.
#[derive(Clone, Debug, Default)]
pub struct Transport {
    features_word: u32,
    taken_word: u32,
    taken: u64,
    selected: u32,
    status: u32,
    queues: [QueueRegisters; MAX_QUEUES],
}

impl Transport {
    /// The registers after a reset; [`Self::show`] puts them into the page.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes all registers to the page. Once they are there the config is the service thread's
    /// ([`Config`](super::config::Config)), whatever becomes of the VM.
    pub fn show(&self, offer: &Offer, page: &impl Page) {
        if page.get(register::MAGIC_VALUE) == 0 {
            show_config(words_of(offer.config), page);
        }
        page.set(register::VERSION, 2);
        page.set(register::DEVICE_ID, offer.device);
        page.set(register::VENDOR_ID, VENDOR);
        page.set(register::INTERRUPT_STATUS, 0);
        for half in [0, 4] {
            page.set(register::SHM_LEN.wrapping_add(half), u32::MAX);
            page.set(register::SHM_BASE.wrapping_add(half), u32::MAX);
        }
        self.show_selected(offer, page);
        self.show_status(page);
        fence(Ordering::Release);
        page.set(register::MAGIC_VALUE, MAGIC);
    }

    fn show_selected(&self, offer: &Offer, page: &impl Page) {
        let word = match self.features_word {
            0 => offer.features as u32,
            1 => (offer.features >> 32) as u32,
            _ => 0,
        };
        page.set(register::DEVICE_FEATURES, word);
        let most = offer.queues.get(self.selected as usize);
        page.set(register::QUEUE_NUM_MAX, most.copied().map_or(0, u32::from));
        let ready = self.queue().is_some_and(|queue| queue.ready);
        page.set(register::QUEUE_READY, u32::from(ready));
        page.set(register::QUEUE_RESET, 0);
    }

    fn show_status(&self, page: &impl Page) {
        page.set(register::STATUS, self.status);
    }

    fn queue(&self) -> Option<&QueueRegisters> {
        self.queues.get(self.selected as usize)
    }

    /// Whether the driver drives the device, and it has not failed.
    pub const fn is_driven(&self) -> bool {
        self.status & (status::DRIVER_OK | status::NEEDS_RESET) == status::DRIVER_OK
    }

    /// The features that the driver has taken.
    pub const fn features(&self) -> u64 {
        self.taken
    }

    /// Those of them that change how rings are used, for a device that is polled or not.
    pub const fn ring_features(&self, polled: bool) -> Features {
        Features {
            indirect: self.taken & feature::INDIRECT_DESC != 0,
            event_idx: self.taken & feature::EVENT_IDX != 0,
            polled,
        }
    }

    /// What the driver has said about a queue that it has enabled.
    pub fn enabled(&self, queue: usize) -> Option<&Setup> {
        let queue = self.queues.get(queue)?;
        queue.ready.then_some(&queue.setup)
    }

    /// Makes the rings of those queues that the driver has enabled, unless they are there already. `false`: the driver drives the device, and one of
    /// them cannot be there.
    pub fn take_over<'a>(
        &self,
        queues: impl Iterator<Item = (usize, &'a mut Option<GuestRing>)>,
        space: &impl Space,
    ) -> bool {
        let features = self.ring_features(false);
        for (index, ring) in queues {
            let Some(setup) = self.enabled(index).filter(|_| ring.is_none()) else {
                continue;
            };
            *ring = GuestRing::new(setup, features, space);
            if ring.is_none() && self.is_driven() {
                return false;
            }
        }
        true
    }

    /// Performs a write to the page. Registers take words only (4.2.2.2), and no driver writes a config: other accesses are
    /// ignored. So are QueueNotify and InterruptACK, which change nothing here: the service thread finds out what they are about.
    pub fn write(
        &mut self,
        offer: &Offer,
        page: &impl Page,
        offset: u64,
        bytes: u32,
        value: u32,
    ) -> Effect {
        if bytes != 4 || !offset.is_multiple_of(4) {
            return Effect::Nothing;
        }
        match offset {
            register::STATUS => return self.set_status(offer, page, value),
            register::QUEUE_READY => return self.set_ready(offer, page, value),
            register::QUEUE_RESET => return self.reset_queue(value),
            register::DEVICE_FEATURES_SEL => self.features_word = value,
            register::DRIVER_FEATURES_SEL => self.taken_word = value,
            register::DRIVER_FEATURES => self.take_features(value),
            register::QUEUE_SEL => self.selected = value,
            _ => return self.set_up(offer, offset, value),
        }
        self.show_selected(offer, page);
        Effect::Nothing
    }

    fn take_features(&mut self, value: u32) {
        if self.status & status::FEATURES_OK != 0 {
            return;
        }
        let value = u64::from(value);
        match self.taken_word {
            0 => self.taken = self.taken & !0xffff_ffff | value,
            1 => self.taken = self.taken & 0xffff_ffff | value << 32,
            _ => {}
        }
    }

    fn set_status(&mut self, offer: &Offer, page: &impl Page, value: u32) -> Effect {
        if value == 0 {
            return Effect::Reset;
        }
        let mut new = value & status::DRIVER & !self.status;
        // A driver that takes what was not offered, or is one of before VIRTIO 1.0, finds FEATURES_OK clear (3.1.1).
        let fits = self.taken & !offer.features == 0 && self.taken & feature::VERSION_1 != 0;
        if !fits {
            new &= !status::FEATURES_OK;
        }
        if (self.status | new) & status::FEATURES_OK == 0 {
            new &= !status::DRIVER_OK;
        }
        // No driver clears a single bit (2.1.1).
        self.status |= new;
        self.show_status(page);
        if new & status::DRIVER_OK != 0 && self.is_driven() {
            return Effect::Start;
        }
        Effect::Nothing
    }

    fn set_ready(&mut self, offer: &Offer, page: &impl Page, value: u32) -> Effect {
        let (driven, selected) = (self.is_driven(), self.selected);
        let Some(queue) = self
            .queues
            .get_mut(selected as usize)
            .filter(|_| (selected as usize) < offer.queues.len())
        else {
            return Effect::Nothing;
        };
        if value == 0 {
            return if queue.ready {
                Effect::Release(selected as u16)
            } else {
                Effect::Nothing
            };
        }
        let is_new = !core::mem::replace(&mut queue.ready, true);
        self.show_selected(offer, page);
        if is_new && driven {
            return Effect::Enable(selected as u16);
        }
        Effect::Nothing
    }

    fn reset_queue(&self, value: u32) -> Effect {
        let resets = value == 1 && self.taken & feature::RING_RESET != 0;
        match self.queue() {
            Some(queue) if resets && queue.ready => Effect::Release(self.selected as u16),
            _ => Effect::Nothing,
        }
    }

    /// The registers that say where the selected queue is. A queue that is in use stays where it is.
    fn set_up(&mut self, offer: &Offer, offset: u64, value: u32) -> Effect {
        let most = offer.queues.get(self.selected as usize).copied();
        let Some(queue) = self.queues.get_mut(self.selected as usize) else {
            return Effect::Nothing;
        };
        let Some(most) = most.filter(|_| !queue.ready) else {
            return Effect::Nothing;
        };
        let setup = &mut queue.setup;
        let half = |all: u64| {
            let shift = offset.wrapping_mul(8) & 32;
            all & !(0xffff_ffff << shift) | u64::from(value) << shift
        };
        match offset & !4 {
            // One that is too large is none: the queue is refused when it is enabled.
            register::QUEUE_NUM if offset == register::QUEUE_NUM => {
                let fits = value <= u32::from(most);
                setup.size = if fits { value as u16 } else { 0 };
            }
            register::QUEUE_DESC => setup.table = half(setup.table),
            register::QUEUE_DRIVER => setup.available = half(setup.available),
            register::QUEUE_DEVICE => setup.used = half(setup.used),
            _ => {}
        }
        Effect::Nothing
    }

    /// Completes a reset. InterruptStatus is cleared by the caller.
    pub fn reset(&mut self, offer: &Offer, page: &impl Page) {
        *self = Self::default();
        self.show_selected(offer, page);
        self.show_status(page);
    }

    /// Completes the reset of a queue.
    pub fn release(&mut self, queue: u16, offer: &Offer, page: &impl Page) {
        if let Some(queue) = self.queues.get_mut(usize::from(queue)) {
            *queue = QueueRegisters::default();
        }
        self.show_selected(offer, page);
    }

    /// The device cannot go on. `true`: the driver is to be told by an interrupt for the config (2.1.2).
    pub fn fail(&mut self, page: &impl Page) -> bool {
        let tells = self.is_driven();
        self.status |= status::NEEDS_RESET;
        self.show_status(page);
        tells
    }
}

/// The words of a config, with zeros behind the last byte.
pub(super) fn words_of(config: &[u8]) -> impl Iterator<Item = u32> {
    let parts = config.get(..MAX_CONFIG).unwrap_or(config).chunks(4);
    parts.map(|part| {
        let mut word = [0; 4];
        for (byte, from) in word.iter_mut().zip(part) {
            *byte = *from;
        }
        u32::from_le_bytes(word)
    })
}

/// Writes a config to the page.
pub(super) fn show_config(words: impl Iterator<Item = u32>, page: &impl Page) {
    let mut offset = register::CONFIG;
    for word in words {
        page.set(offset, word);
        offset = offset.wrapping_add(4);
    }
}
