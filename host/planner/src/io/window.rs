//! The window of a device: its device page, then the virtqueues, then the slots of each.

use bulkhead_abi::device::ring::{DESCRIPTOR, Ring};
use bulkhead_abi::plan::PAGE;

/// Shape of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueShape {
    /// Most entries of the guest's queue.
    pub size: u16,
    /// Entries of the backend's queue, and slots. This and what follows is 0 where EL2 is the backend.
    pub slots: u16,
    /// `QUEUE_EXACT` and others.
    pub flags: u16,
    /// Bytes of a slot.
    pub slot_bytes: u32,
    /// Most readable bytes of a chain.
    pub readable: u32,
    /// Most writable bytes of a chain.
    pub writable: u32,
}

/// Where a queue has its parts: offsets in the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub ring: u64,
    pub slots: u64,
}

/// Places of the queues in their window, and the bytes of the window.
pub(super) fn lay_out(queues: &[QueueShape]) -> (Vec<Place>, u64) {
    let mut next = PAGE;
    let rings: Vec<u64> = queues
        .iter()
        .map(|queue| {
            let ring = next.next_multiple_of(DESCRIPTOR);
            next = Ring::new(ring, queue.slots).end;
            ring
        })
        .collect();
    let places = rings.into_iter().zip(queues).map(|(ring, queue)| {
        // EL2 copies whole slots, which is fastest from the start of a page.
        let slots = next.next_multiple_of(PAGE);
        next = slots + u64::from(queue.slots) * u64::from(queue.slot_bytes);
        Place { ring, slots }
    });
    let places = places.collect();
    (places, next.next_multiple_of(PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shapes of all sizes that a plan may have.
    fn shapes() -> impl Iterator<Item = Vec<QueueShape>> {
        let shape = |bits: u32, slot_bytes| QueueShape {
            size: 1 << bits,
            slots: 1 << bits,
            flags: 0,
            slot_bytes,
            readable: slot_bytes,
            writable: 0,
        };
        let slot_bytes = [16, 48, 2048, 4096, 65552];
        (0..9).flat_map(move |bits| {
            slot_bytes.into_iter().flat_map(move |bytes| {
                (1..9).map(move |queues| {
                    (0..queues)
                        .map(|queue| shape((bits + queue) % 9, bytes))
                        .collect()
                })
            })
        })
    }

    #[test]
    fn parts_are_behind_the_device_page_aligned_and_apart() {
        for queues in shapes() {
            let (places, size) = lay_out(&queues);
            assert_eq!(size % PAGE, 0);
            assert_eq!(places.len(), queues.len());
            let mut parts = vec![(0, PAGE)];
            for (place, queue) in places.iter().zip(&queues) {
                assert_eq!(place.ring % 16, 0);
                assert_eq!(place.slots % 16, 0);
                parts.push((place.ring, Ring::new(place.ring, queue.slots).end));
                let slots = u64::from(queue.slots) * u64::from(queue.slot_bytes);
                parts.push((place.slots, place.slots + slots));
            }
            parts.sort_unstable();
            let apart = parts.windows(2).all(|pair| pair[0].1 <= pair[1].0);
            assert!(apart, "{queues:?}: {parts:?}");
            assert!(parts.iter().all(|(_, end)| *end <= size), "{queues:?}");
        }
    }
}
