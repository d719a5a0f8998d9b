//! Split virtqueues (VIRTIO 1.2, section 2.7): where in one is what.

/// Descriptor: another follows ([`DESCRIPTOR_NEXT`]).
pub const NEXT: u16 = 1;
/// Descriptor: the device writes to the buffer. Otherwise it reads.
pub const WRITE: u16 = 2;
/// Descriptor: the buffer is a table of descriptors.
pub const INDIRECT: u16 = 4;

/// Available ring, flags: the device need not interrupt when it has used a buffer (without EVENT_IDX).
pub const NO_INTERRUPT: u16 = 1;
/// Used ring, flags: the driver need not notify when it has added a buffer (without EVENT_IDX).
pub const NO_NOTIFY: u16 = 1;

/// Bytes of a descriptor.
pub const DESCRIPTOR: u64 = 16;
/// In a descriptor: length, 32 bits. Before it is the address, 64 bits.
pub const DESCRIPTOR_LEN: u64 = 8;
/// In a descriptor: flags, 16 bits.
pub const DESCRIPTOR_FLAGS: u64 = 12;
/// In a descriptor: index of the next one, 16 bits.
pub const DESCRIPTOR_NEXT: u64 = 14;
/// In the available and in the used ring: flags, 16 bits.
pub const FLAGS: u64 = 0;
/// In the available and in the used ring: index behind the last entry, 16 bits.
pub const INDEX: u64 = 2;
/// In the available and in the used ring: the first entry.
pub const ENTRIES: u64 = 4;
/// Bytes of an entry of the available ring.
pub const AVAILABLE_ENTRY: u64 = 2;
/// Bytes of an entry of the used ring: 32 bits of id, 32 bits of length.
pub const USED_ENTRY: u64 = 8;

/// Offsets of the parts of a queue that lies in one piece, as queues of windows do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// The descriptor table.
    pub table: u64,
    /// The available ring.
    pub available: u64,
    /// The used ring.
    pub used: u64,
    /// Where the queue ends.
    pub end: u64,
}

impl Ring {
    /// The parts of a queue of `size` entries whose descriptor table is at `table`, a multiple of 16.
    pub const fn new(table: u64, size: u16) -> Self {
        let available = table.wrapping_add(DESCRIPTOR.wrapping_mul(size as u64));
        // A multiple of 4: an address of a guest's must not overflow.
        let used = available
            .wrapping_add(available_bytes(size))
            .wrapping_add(3)
            & !3;
        let end = used.wrapping_add(used_bytes(size));
        Self {
            table,
            available,
            used,
            end,
        }
    }
}

/// Bytes of an available ring, `used_event` included.
pub const fn available_bytes(size: u16) -> u64 {
    AVAILABLE_ENTRY.wrapping_mul(size as u64).wrapping_add(6)
}

/// Bytes of a used ring, `avail_event` included.
pub const fn used_bytes(size: u16) -> u64 {
    USED_ENTRY.wrapping_mul(size as u64).wrapping_add(6)
}

/// In an available ring: `used_event`, the entry of the used ring with which the driver wants to be interrupted.
pub const fn used_event(size: u16) -> u64 {
    AVAILABLE_ENTRY
        .wrapping_mul(size as u64)
        .wrapping_add(ENTRIES)
}

/// In a used ring: `avail_event`, the entry of the available ring with which the device wants to be notified.
pub const fn avail_event(size: u16) -> u64 {
    USED_ENTRY.wrapping_mul(size as u64).wrapping_add(ENTRIES)
}

/// Whether an index that has gone from `old` to `new` has passed the entry `event`, with which the other side wants to be told
/// (VIRTIO 1.2, 2.7.7.2).
pub const fn has_passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_one_another_aligned() {
        for bits in 0..9 {
            let size = 1u16 << bits;
            let ring = Ring::new(0x1000, size);
            assert_eq!(ring.available, 0x1000 + 16 * u64::from(size));
            assert!(ring.used >= ring.available + available_bytes(size));
            assert_eq!(ring.used % 4, 0);
            assert_eq!(ring.end, ring.used + 6 + 8 * u64::from(size));
        }
    }

    #[test]
    fn an_event_is_passed_once() {
        assert!(has_passed(5, 6, 5));
        assert!(!has_passed(5, 6, 6), "nothing new");
        assert!(!has_passed(6, 6, 5), "not yet");
        assert!(has_passed(0xffff, 0, 0xffff), "around the end");
        assert!(has_passed(3, 10, 2));
        assert!(!has_passed(1, 10, 2), "long ago");
    }
}
