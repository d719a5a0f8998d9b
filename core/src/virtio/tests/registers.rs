//! The registers of a device, as a driver uses them, and the handshake with a backend.

use std::cell::RefCell;
use std::vec::Vec;

use proptest::prelude::*;

use bulkhead_abi::device::device_page;

use super::parts::{Ram, WINDOW};
use crate::virtio::memory::At;
use crate::virtio::session::{News, QueueRow, Session};
use crate::virtio::transport::{Effect, Offer, Page, Transport, feature, register, status};

struct Registers(RefCell<Vec<u32>>);

impl Registers {
    fn new() -> Self {
        Self(RefCell::new(std::vec![0; 0x80]))
    }
}

impl Page for Registers {
    fn set(&self, offset: u64, value: u32) {
        assert_eq!(offset % 4, 0);
        self.0.borrow_mut()[offset as usize / 4] = value;
    }

    fn get(&self, offset: u64) -> u32 {
        self.0.borrow()[offset as usize / 4]
    }
}

const OFFER: Offer = Offer {
    device: 2,
    features: feature::VERSION_1
        | feature::EVENT_IDX
        | feature::INDIRECT_DESC
        | feature::RING_RESET
        | 0x5,
    queues: &[64, 16],
    config: &[1, 2, 3, 4, 5, 6],
};

struct Device {
    page: Registers,
    transport: Transport,
}

impl Device {
    fn new() -> Self {
        let (page, transport) = (Registers::new(), Transport::new());
        transport.show(&OFFER, &page);
        Self { page, transport }
    }

    fn write(&mut self, offset: u64, value: u32) -> Effect {
        self.transport.write(&OFFER, &self.page, offset, 4, value)
    }

    fn take(&mut self, features: u64) {
        for (word, value) in [(0, features as u32), (1, (features >> 32) as u32)] {
            self.write(register::DRIVER_FEATURES_SEL, word);
            self.write(register::DRIVER_FEATURES, value);
        }
    }

    /// As a driver does it (3.1.1).
    fn drive(&mut self, features: u64) -> Effect {
        self.write(register::STATUS, 1);
        self.write(register::STATUS, 3);
        self.take(features);
        self.write(register::STATUS, 11);
        self.set_up(0, 8);
        self.write(register::STATUS, 15)
    }

    fn set_up(&mut self, queue: u32, size: u32) {
        self.write(register::QUEUE_SEL, queue);
        self.write(register::QUEUE_NUM, size);
        for (offset, value) in [
            (register::QUEUE_DESC, 0x1_2345_6780u64),
            (register::QUEUE_DRIVER, 0x2_0000_0002),
            (register::QUEUE_DEVICE, 0x3_0000_0004),
        ] {
            self.write(offset, value as u32);
            self.write(offset + 4, (value >> 32) as u32);
        }
        self.write(register::QUEUE_READY, 1);
    }
}

const TAKEN: u64 = feature::VERSION_1 | feature::EVENT_IDX | feature::RING_RESET | 1;

#[test]
fn what_a_driver_finds() {
    let mut device = Device::new();
    let get = |device: &Device, offset| device.page.get(offset);
    assert_eq!(get(&device, register::MAGIC_VALUE), 0x7472_6976);
    assert_eq!(get(&device, register::VERSION), 2);
    assert_eq!(get(&device, register::DEVICE_ID), 2);
    assert_eq!(get(&device, register::DEVICE_FEATURES), 0x3000_0005);
    device.write(register::DEVICE_FEATURES_SEL, 1);
    assert_eq!(get(&device, register::DEVICE_FEATURES), 0x101);
    device.write(register::DEVICE_FEATURES_SEL, 2);
    assert_eq!(get(&device, register::DEVICE_FEATURES), 0);
    for (queue, most) in [(0, 64), (1, 16), (2, 0), (8, 0), (u32::MAX, 0)] {
        device.write(register::QUEUE_SEL, queue);
        assert_eq!(get(&device, register::QUEUE_NUM_MAX), most, "{queue}");
    }
    assert_eq!(get(&device, register::SHM_LEN), u32::MAX);
    assert_eq!(get(&device, register::SHM_LEN + 4), u32::MAX);
    assert_eq!(get(&device, register::CONFIG), 0x0403_0201);
    assert_eq!(get(&device, register::CONFIG + 4), 0x0605);
}

#[test]
fn a_driver_starts() {
    let mut device = Device::new();
    assert!(!device.transport.is_driven());
    assert_eq!(device.drive(TAKEN), Effect::Start);
    assert_eq!(device.page.get(register::STATUS), 15);
    assert_eq!(device.transport.features(), TAKEN);
    let setup = device.transport.enabled(0).unwrap();
    assert_eq!(
        (setup.size, setup.table, setup.available, setup.used),
        (8, 0x1_2345_6780, 0x2_0000_0002, 0x3_0000_0004)
    );
    assert!(device.transport.enabled(1).is_none());
    assert!(device.transport.enabled(8).is_none());
    assert_eq!(device.page.get(register::QUEUE_READY), 1);
    assert_eq!(device.write(register::QUEUE_NOTIFY, 0), Effect::Nothing);
    assert_eq!(device.write(register::INTERRUPT_ACK, 3), Effect::Nothing);
    device.set_up(1, 16);
    assert_eq!(device.write(register::QUEUE_READY, 0), Effect::Release(1));
}

#[test]
fn features_that_do_not_fit() {
    for features in [TAKEN | 2, TAKEN & !feature::VERSION_1, 0, TAKEN | 1 << 63] {
        let mut device = Device::new();
        assert_eq!(device.drive(features), Effect::Nothing);
        assert_eq!(device.page.get(register::STATUS), 3, "{features:#x}");
        assert!(!device.transport.is_driven());
        assert_eq!(device.write(register::QUEUE_NOTIFY, 0), Effect::Nothing);
    }
    let mut device = Device::new();
    device.drive(TAKEN);
    device.take(TAKEN & !1);
    assert_eq!(device.transport.features(), TAKEN, "too late");
}

#[test]
fn a_queue_in_use_stays_where_it_is() {
    let mut device = Device::new();
    device.drive(TAKEN);
    let before = *device.transport.enabled(0).unwrap();
    for offset in [
        register::QUEUE_NUM,
        register::QUEUE_DESC,
        register::QUEUE_DRIVER + 4,
        register::QUEUE_DEVICE,
    ] {
        assert_eq!(device.write(offset, 4), Effect::Nothing);
    }
    assert_eq!(device.transport.enabled(0), Some(&before));
    assert_eq!(device.write(register::QUEUE_READY, 1), Effect::Nothing);
}

#[test]
fn a_size_that_is_too_large_is_none() {
    for (size, taken) in [(64, 64), (65, 0), (0x1_0008, 0), (u32::MAX, 0)] {
        let mut device = Device::new();
        device.set_up(0, size);
        assert_eq!(device.transport.enabled(0).unwrap().size, taken, "{size}");
    }
}

#[test]
fn a_reset_completes_when_the_queues_are_let_go_of() {
    let mut device = Device::new();
    device.drive(TAKEN);
    assert_eq!(device.write(register::STATUS, 0), Effect::Reset);
    assert_eq!(device.write(register::STATUS, 0), Effect::Reset, "repeated");
    assert_eq!(device.page.get(register::STATUS), 15, "not yet");
    device.transport.reset(&OFFER, &device.page);
    assert_eq!(device.page.get(register::STATUS), 0);
    assert_eq!(device.page.get(register::QUEUE_READY), 0);
    assert_eq!(
        device.page.get(register::DEVICE_FEATURES),
        OFFER.features as u32
    );
    assert_eq!(device.transport.features(), 0);
    assert_eq!(device.drive(TAKEN), Effect::Start, "and once more");
}

#[test]
fn a_queue_is_reset_and_enabled_anew() {
    let mut device = Device::new();
    device.drive(TAKEN);
    device.write(register::QUEUE_SEL, 0);
    assert_eq!(device.write(register::QUEUE_RESET, 1), Effect::Release(0));
    device.transport.release(0, &OFFER, &device.page);
    assert_eq!(device.page.get(register::QUEUE_RESET), 0);
    assert_eq!(device.page.get(register::QUEUE_READY), 0);
    assert_eq!(device.write(register::QUEUE_RESET, 1), Effect::Nothing);
    device.write(register::QUEUE_NUM, 4);
    assert_eq!(device.write(register::QUEUE_READY, 1), Effect::Enable(0));
    let mut device = Device::new();
    device.drive(TAKEN & !feature::RING_RESET);
    assert_eq!(device.write(register::QUEUE_RESET, 1), Effect::Nothing);
}

#[test]
fn a_device_that_cannot_go_on() {
    let mut device = Device::new();
    assert!(!device.transport.fail(&device.page), "nobody drives it");
    assert_eq!(device.page.get(register::STATUS), status::NEEDS_RESET);
    let mut device = Device::new();
    device.drive(TAKEN);
    assert!(device.transport.fail(&device.page));
    assert_eq!(device.page.get(register::STATUS), 15 | status::NEEDS_RESET);
    assert!(!device.transport.fail(&device.page), "told once");
    assert_eq!(device.write(register::QUEUE_NOTIFY, 0), Effect::Nothing);
    assert_eq!(device.write(register::STATUS, 0), Effect::Reset);
}

proptest! {
    /// Writes of any width, anywhere, in any order: no effect that names a queue which is not there, none of accesses that are no words,
    /// and the page says what holds.
    #[test]
    fn any_writes(
        writes in proptest::collection::vec(
            (0u64..0x300, prop_oneof![8 => Just(4u32), 1 => 1u32..9], prop_oneof![
                4 => 0u32..20, 1 => any::<u32>(),
            ], any::<bool>()),
            1..200,
        ),
    ) {
        let mut device = Device::new();
        for (offset, bytes, value, aligned) in writes {
            let offset = if aligned { offset & !3 } else { offset };
            let Device { page, transport } = &mut device;
            let was_driven = transport.is_driven();
            let effect = transport.write(&OFFER, page, offset, bytes, value);
            match effect {
                Effect::Release(queue) => {
                    prop_assert!(transport.enabled(queue.into()).is_some());
                    transport.release(queue, &OFFER, page);
                }
                Effect::Enable(queue) => {
                    prop_assert!(usize::from(queue) < OFFER.queues.len() && was_driven);
                }
                Effect::Start => prop_assert!(!was_driven && transport.is_driven()),
                Effect::Reset => transport.reset(&OFFER, page),
                Effect::Nothing => {}
            }
            prop_assert!(bytes == 4 && offset % 4 == 0 || effect == Effect::Nothing);
            let shown = page.get(register::STATUS);
            prop_assert_eq!(shown & status::DRIVER_OK != 0, transport.is_driven());
            prop_assert!(!transport.is_driven() || transport.features() & !OFFER.features == 0);
        }
    }
}

fn word(ram: &Ram, offset: usize) -> u32 {
    ram.get32(WINDOW.start + offset as u64)
}

fn write(ram: &Ram, offset: usize, value: u32) {
    ram.write(WINDOW.start + offset as u64, &value.to_le_bytes());
}

fn row(number: u16) -> QueueRow {
    QueueRow {
        table: 0x1000 * u32::from(number),
        size: 8,
        enabled: true,
        slot_bytes: 2048,
        slots: 0x8000,
    }
}

#[test]
fn a_session_begins_when_the_backend_has_let_go() {
    let (ram, window) = (Ram::new(), At::new(WINDOW.start));
    let mut session = Session::new();
    session.show(&ram, window);
    assert_eq!(session.look(&ram, window), News::Nothing, "no backend");
    write(&ram, device_page::READY, 1);
    assert_eq!(session.look(&ram, window), News::Ready);
    session.begin(0x1_2000_0001, (1..3).map(row), &ram, window);
    assert!(session.is_live());
    assert_eq!(word(&ram, device_page::LIVE), 1);
    assert_eq!(word(&ram, device_page::FEATURES), 0x2000_0001);
    assert_eq!(word(&ram, device_page::FEATURES + 4), 1);
    let second = device_page::QUEUE + device_page::QUEUE_STRIDE;
    assert_eq!(word(&ram, second + device_page::QUEUE_TABLE), 0x2000);
    assert_eq!(word(&ram, second + device_page::QUEUE_ENABLED), 1);
    session.end(&ram, window);
    assert!(!session.is_live());
    assert_eq!(word(&ram, device_page::SESSION), 2);
    assert_eq!(
        session.look(&ram, window),
        News::Nothing,
        "that was the old one"
    );
    write(&ram, device_page::READY, 3);
    assert_eq!(
        session.look(&ram, window),
        News::Nothing,
        "there is no such session"
    );
    write(&ram, device_page::READY, 2);
    assert_eq!(session.look(&ram, window), News::Ready);
}

#[test]
fn a_backend_refuses_or_wants_a_restart() {
    let (ram, window) = (Ram::new(), At::new(WINDOW.start));
    let mut session = Session::new();
    session.show(&ram, window);
    write(&ram, device_page::REFUSAL, 3);
    assert_eq!(session.look(&ram, window), News::Refuses(3));
    write(&ram, device_page::READY, 1);
    assert_eq!(
        session.look(&ram, window),
        News::Ready,
        "it has thought better of it"
    );
    session.begin(0, [row(1)].into_iter(), &ram, window);
    assert_eq!(session.look(&ram, window), News::Nothing);
    write(&ram, device_page::RESTART, 7);
    assert_eq!(session.look(&ram, window), News::Nothing, "of no session");
    write(&ram, device_page::RESTART, 1);
    assert_eq!(session.look(&ram, window), News::WantsRestart);
    session.end(&ram, window);
    assert_eq!(session.look(&ram, window), News::Refuses(3), "not twice");
}
