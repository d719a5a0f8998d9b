//! Rules about the queues of virtio devices, and where they lie in the windows.

use bulkhead_abi::device::MAX_QUEUE_SIZE;
use bulkhead_abi::device::ring::Ring;
use zerocopy::FromZeros;

use bulkhead_abi::plan::{PAGE, QUEUE_EXACT, QUEUE_REPLAY, TableId, Virtqueue};

use super::virtio::is_el2;
use crate::plan::span::{Span, aligned};
use crate::plan::view::Plan;
use crate::plan::violation::{At, Check, Invariant};

/// Mask of the flags that are defined for queues.
const FLAGS: u16 = QUEUE_EXACT | QUEUE_REPLAY;
/// What slots, their size and the parts of queues are multiples of.
const UNIT: u32 = 16;

/// Whether a queue can have this many entries.
const fn is_size(size: u16) -> bool {
    2 <= size && size <= MAX_QUEUE_SIZE && size.is_power_of_two()
}

/// Whether the slots of a queue hold the largest legal request: what is readable and what is writable each start a
/// slot.
fn fits_slots(queue: &Virtqueue) -> bool {
    let slot = queue.slot_bytes.max(1);
    let needed = [queue.readable, queue.writable].map(|bytes| u64::from(bytes.div_ceil(slot)));
    let slots = needed.into_iter().fold(0, u64::wrapping_add);
    1 <= slots && slots <= queue.slots.into()
}

/// Where the backend's ring and the slots of a queue lie in the window.
fn parts(queue: &Virtqueue) -> [Option<Span>; 2] {
    let ring = Ring::new(queue.ring.into(), queue.slots);
    let bytes = u64::from(queue.slots).wrapping_mul(queue.slot_bytes.into());
    [
        Span::new(ring.table, ring.end.wrapping_sub(ring.table)),
        Span::new(queue.slots_at.into(), bytes),
    ]
}

impl Plan<'_> {
    /// Checks the queues, after their devices.
    pub(super) fn check_virtqueues(&self) -> Check {
        for (row, queue) in self.virtqueues().iter().enumerate() {
            let at = At::row(TableId::Virtqueues, row);
            at.ensure(queue.reserved == 0, Invariant::ReservedZero)?;
            at.ensure(queue.flags & !FLAGS == 0, Invariant::VirtioFlags)?;
            let device = self.virtio_devices().get(usize::from(queue.device));
            let backend = device.and_then(|row| self.backends().get(usize::from(row.backend)));
            if backend.is_some_and(is_el2) {
                let bare = Virtqueue {
                    device: queue.device,
                    size: queue.size,
                    ..Virtqueue::new_zeroed()
                };
                let sound = is_size(queue.size) && *queue == bare;
                at.ensure(sound, Invariant::VirtqueueSize)?;
                continue;
            }
            let slot = queue.slot_bytes != 0 && queue.slot_bytes.is_multiple_of(UNIT);
            let sizes = is_size(queue.size) && is_size(queue.slots) && slot;
            at.ensure(sizes, Invariant::VirtqueueSize)?;
            at.ensure(fits_slots(queue), Invariant::VirtqueueRequest)?;
            self.check_parts(at, row, queue)?;
        }
        Ok(())
    }

    /// Checks where a queue lies in the window of its device.
    fn check_parts(&self, at: At, row: usize, queue: &Virtqueue) -> Check {
        let device = self.virtio_devices().get(usize::from(queue.device));
        let size = device.map_or(0, |device| device.window_size);
        // The first page is the device page.
        let places = Span {
            start: PAGE,
            end: size,
        };
        let unit = u64::from(UNIT);
        let inside = |part: Span| aligned(part.start, unit) && places.contains(part);
        let [Some(ring), Some(slots)] = parts(queue).map(|part| part.filter(|part| inside(*part)))
        else {
            return Err(at.breaks(Invariant::VirtqueueWindow));
        };
        at.ensure(!ring.overlaps(slots), Invariant::VirtqueueWindow)?;
        let others = self.virtqueues().iter().enumerate().take(row);
        for (number, other) in others.filter(|(_, other)| other.device == queue.device) {
            let mut parts = parts(other).into_iter().flatten();
            let apart = parts.all(|part| !part.overlaps(ring) && !part.overlaps(slots));
            at.and(number).ensure(apart, Invariant::VirtqueueWindow)?;
        }
        Ok(())
    }
}
