//! Queues of one device.

use std::vec;

use bulkhead_abi::device::{device_page, ring};

use super::devices::{OFFER, Unread};
use super::parts::*;
use crate::virtio::backend_ring::{Layout, Slot};
use crate::virtio::device::{Device, Kind, Planned, Store};
use crate::virtio::memory::At;
use crate::virtio::queue::Budget;
use crate::virtio::requests::{Release, Requests};
use crate::virtio::round::SLICE;
use crate::virtio::transport::{Offer, Transport, register};

/// A queue in which there is always something does not keep the other one away.
#[test]
fn queues_take_turns() {
    let ram = Ram::new();
    let second = Layout {
        ring: ring::Ring::new(0x8000, SLOTS),
        slots: 0xa000,
        ..layout()
    };
    let queues = [layout(), second].map(|layout| {
        let store = Store {
            slots: vec![Slot::NEW; SLOTS.into()].leak(),
            again: vec![0; SLOTS.into()].leak(),
        };
        (
            Planned {
                layout,
                policy: POLICY,
            },
            store,
        )
    });
    let kind = Kind {
        polled: false,
        resets: false,
    };
    let mut device = Device::new(kind, At::new(WINDOW.start), queues.into_iter());
    device.show(&ram);
    let offer = Offer {
        queues: &[GUEST_SIZE, GUEST_SIZE],
        ..OFFER
    };
    let mut transport = Transport::new();
    let mut write = |offset, value| transport.write(&offer, &Unread, offset, 4, value);
    write(register::DRIVER_FEATURES_SEL, 1);
    write(register::DRIVER_FEATURES, 1);
    write(register::STATUS, 11);
    for queue in 0..2 {
        // Of the second queue all parts lie behind those of the first.
        let from = 0x400 * queue as u64;
        write(register::QUEUE_SEL, queue);
        write(register::QUEUE_NUM, GUEST_SIZE.into());
        write(register::QUEUE_DESC, (setup().table + from) as u32);
        write(register::QUEUE_DRIVER, (setup().available + from) as u32);
        write(register::QUEUE_DEVICE, (setup().used + from) as u32);
        write(register::QUEUE_READY, 1);
        let chain =
            |ipa: u64, len: u32| [ipa.to_le_bytes().as_slice(), &len.to_le_bytes()].concat();
        put(&ram, setup().table + from, &chain(0x4000_0800, 1000));
        put(&ram, setup().available + from + ring::INDEX, &[1, 0]);
    }
    write(register::STATUS, 15);
    let requests = Requests::new();
    device.start(&transport, &requests, &ram, &Vm);
    let posted = |queue: &Layout| {
        let index = WINDOW.start + queue.ring.available + ring::INDEX;
        ram.get16(index)
    };
    ram.write(WINDOW.start + device_page::READY as u64, &[1, 0, 0, 0]);
    let mut slices = 0;
    while posted(&second) == 0 {
        // There is always one more in the first queue.
        let index = setup().available + ring::INDEX;
        let taken = posted(&layout()).wrapping_add(2);
        put(&ram, index, &taken.to_le_bytes());
        let mut budget = Budget::of(9, 100);
        device.slice(requests.look(), &ram, &Vm, &mut budget);
        slices += 1;
        assert!(slices < 25, "1000 bytes of each, 100 at a time");
    }
    // The VM ends while the device has a slice: who waits for the release is told by the slice that began with it, and by no other.
    let mut budget = SLICE;
    let asked = requests.look();
    assert!(!requests.release(Release::All));
    device.slice(asked, &ram, &Vm, &mut budget);
    assert_eq!(requests.asked(), Some(Release::All), "it waits still");
    device.slice(requests.look(), &ram, &Vm, &mut budget);
    assert!(requests.release(Release::All), "it has let go");
}
