//! What stands in a device page before any session: what the plan says of the device.

use core::sync::atomic::{Ordering, fence};

use bulkhead_abi::device::device_page as page;
use bulkhead_abi::device::ring::Ring;
use bulkhead_abi::plan::{VirtioDevice, Virtqueue};

use super::backend_ring::Layout;
use super::device::Planned;
use super::memory::{At, Memory};
use super::queue::Policy;

/// Writes the page of a device in a window whose memory is zero, except the words of the session, which
/// [`Device::show`](super::device::Device::show) has written before. The backend finds the page by its first word.
pub fn make(memory: &impl Memory, window: At, row: &VirtioDevice, queues: usize) {
    let at = |offset: usize| window.plus(offset as u64);
    let write = |offset, value: u32| memory.store32(at(offset), value);
    write(page::VERSION, page::VERSION_VALUE);
    write(page::DEVICE_ID, row.id.into());
    write(page::QUEUES, queues as u32);
    write(page::INDEX, row.index.into());
    memory.store64(at(page::OFFERED), row.features);
    write(page::WINDOW, row.window_size as u32);
    write(page::UNIT, row.unit.into());
    write(page::CONFIG_BYTES, row.config_bytes.into());
    let mut place = page::CONFIG;
    for bytes in row.config.as_chunks::<4>().0 {
        write(place, u32::from_le_bytes(*bytes));
        place = place.wrapping_add(4);
    }
    fence(Ordering::Release);
    write(page::MAGIC, page::MAGIC_VALUE);
}

/// What the plan says about a queue of a window.
pub const fn planned(row: &Virtqueue, window: At) -> Planned {
    use bulkhead_abi::plan::{QUEUE_EXACT, QUEUE_REPLAY};
    Planned {
        layout: Layout {
            window,
            ring: Ring::new(row.ring as u64, row.slots),
            size: row.slots,
            slots: row.slots_at as u64,
            slot_bytes: row.slot_bytes,
        },
        policy: Policy {
            readable: row.readable,
            writable: row.writable,
            exact: row.flags & QUEUE_EXACT != 0,
            replay: row.flags & QUEUE_REPLAY != 0,
        },
    }
}
