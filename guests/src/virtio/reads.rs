//! A virtio disk with many reads in flight, by the virtqueue of the crate: that of its driver of disks is too short for them.

use super::{Machine, PAGE, Registers, registers, take};
use crate::board::Device;
use core::array::from_fn;
use core::slice;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::{DeviceStatus, Transport};
use virtio_drivers::{Error, Result};

/// Most reads in flight.
pub const READS: usize = 32;
/// Bytes of a read.
pub const BYTES: usize = 4096;

/// Entries of the queue: three for each read, and the next power of two.
const QUEUE: usize = 128;
/// Header of a request: its type, which is 0 for a read, a word that is reserved, and its sector (VIRTIO 1.2, 5.2.6).
const HEADER: usize = 16;
const SECTOR_AT: usize = 8;
/// Features that the driver knows: EVENT_IDX and VERSION_1.
const FEATURES: u64 = 1 << 29 | 1 << 32;
const EVENT_IDX: u64 = 1 << 29;

/// A read. Its memory is never given back: whatever a device does, it finds no other thing there.
struct Read {
    header: &'static mut [u8],
    data: &'static mut [u8],
    status: &'static mut [u8],
    token: Option<u16>,
}

/// A disk that is read.
pub struct Reads {
    device: Device,
    registers: Registers,
    queue: VirtQueue<Machine, QUEUE>,
    reads: [Read; READS],
}

impl Reads {
    /// Resets the device and drives it. `None` if it cannot be driven so, or without memory.
    pub fn new(device: Device) -> Option<Self> {
        let mut registers = registers(device)?;
        let mut status = DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER;
        registers.set_status(DeviceStatus::empty());
        registers.set_status(status);
        let features = registers.read_device_features() & FEATURES;
        registers.write_driver_features(features);
        status |= DeviceStatus::FEATURES_OK;
        registers.set_status(status);
        let queue = VirtQueue::new(&mut registers, 0, false, features & EVENT_IDX != 0).ok()?;
        registers.set_status(status | DeviceStatus::DRIVER_OK);
        let (small, data) = (take(1)?.as_ptr(), take(READS)?.as_ptr());
        let bytes = |start: *mut u8, at: usize, count| {
            // SAFETY: they are in pages that nobody else has, zero, and never given back; no two of the slices overlap.
            unsafe { slice::from_raw_parts_mut(start.wrapping_add(at), count) }
        };
        Some(Self {
            device,
            registers,
            queue,
            reads: from_fn(|number| Read {
                header: bytes(small, number * HEADER, HEADER),
                data: bytes(data, number * BYTES, BYTES),
                status: bytes(small, PAGE / 2 + number, 1),
                token: None,
            }),
        })
    }

    /// Its INTID.
    pub fn intid(&self) -> u32 {
        self.device.intid
    }

    /// Its sectors.
    pub fn capacity(&self) -> u64 {
        // The crate reads no more than 32 bits at once.
        let half = |at| self.registers.read_config_space::<u32>(at).unwrap_or(0);
        u64::from(half(0)) | u64::from(half(4)) << 32
    }

    /// Adds a read of [`BYTES`] bytes from a sector on, of which the device is not told yet.
    pub fn begin(&mut self, number: usize, sector: u64) -> Result {
        let read = &mut self.reads[number];
        assert!(read.token.is_none(), "the device has it");
        read.header[SECTOR_AT..].copy_from_slice(&sector.to_le_bytes());
        let writable = &mut [&mut *read.data, &mut *read.status];
        // SAFETY: nobody touches the bytes while the device has the token, and they stay where they are.
        read.token = Some(unsafe { self.queue.add(&[read.header], writable) }?);
        Ok(())
    }

    /// Tells the device of reads that were added, if it wants to be told.
    pub fn tell(&mut self) {
        if self.queue.should_notify() {
            self.registers.notify(0);
        }
    }

    /// Whether a read is finished.
    pub fn has_finished(&self) -> bool {
        self.queue.can_pop()
    }

    /// Takes back a read that is finished: its number and its bytes.
    pub fn finish(&mut self) -> Option<Result<(usize, &[u8])>> {
        let token = self.queue.peek_used()?;
        let is_it = |read: &Read| read.token == Some(token);
        let Some(number) = self.reads.iter().position(is_it) else {
            return Some(Err(Error::WrongToken));
        };
        let read = &mut self.reads[number];
        let writable = &mut [&mut *read.data, &mut *read.status];
        // SAFETY: they are what the read with this token was begun with.
        let done = unsafe { self.queue.pop_used(token, &[read.header], writable) };
        read.token = None;
        let is_good = read.status.first() == Some(&0);
        Some(match done {
            Ok(_) if is_good => Ok((number, read.data)),
            Ok(_) => Err(Error::IoError),
            Err(error) => Err(error),
        })
    }

    /// Acknowledges its interrupt.
    pub fn acknowledge(&mut self) {
        self.registers.ack_interrupt();
    }
}
