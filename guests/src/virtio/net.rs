//! A virtio network device with several frames in flight in both directions.

use super::{Machine, PAGE, Registers, registers, take};
use crate::board::Device;
use core::array::from_fn;
use core::slice;
use virtio_drivers::Result;
use virtio_drivers::device::net::VirtIONetRaw;

/// Frames in flight in each direction: entries of each queue.
pub const DEPTH: usize = 32;
/// Bytes of a buffer: a page holds two.
const BUFFER: usize = PAGE / 2;
/// Bytes of the longest frame: an Ethernet header and 1500 bytes.
pub const LONGEST: usize = 1514;
/// Buffers of one direction. They are never given back: whatever a device does, it finds no other thing there.
struct Buffers {
    bytes: [&'static mut [u8]; DEPTH],
    /// The token of each that the device has.
    tokens: [Option<u16>; DEPTH],
    /// What of each the device has.
    lengths: [usize; DEPTH],
}

impl Buffers {
    fn new() -> Option<Self> {
        let start = take(DEPTH * BUFFER / PAGE)?.as_ptr();
        let buffer = |number| {
            let bytes = start.wrapping_add(number * BUFFER);
            // SAFETY: the pages are nobody else's, zero, and never given back; the buffers do not overlap.
            unsafe { slice::from_raw_parts_mut(bytes, BUFFER) }
        };
        Some(Self {
            bytes: from_fn(buffer),
            tokens: [None; DEPTH],
            lengths: [BUFFER; DEPTH],
        })
    }

    fn of_token(&self, token: u16) -> Option<usize> {
        self.tokens.iter().position(|own| *own == Some(token))
    }

    fn free(&self) -> Option<usize> {
        self.tokens.iter().position(Option::is_none)
    }
}

/// A network device.
pub struct Net {
    device: Device,
    driver: VirtIONetRaw<Machine, Registers, DEPTH>,
    received: Buffers,
    sent: Buffers,
    broken: u64,
}

impl Net {
    /// Resets the device, drives it, and gives it all buffers for what it receives. `None` if it is no network device, if it
    /// cannot be driven, or without memory for frames.
    pub fn new(device: Device) -> Option<Self> {
        let mut net = Self {
            device,
            driver: VirtIONetRaw::new(registers(device)?).ok()?,
            received: Buffers::new()?,
            sent: Buffers::new()?,
            broken: 0,
        };
        (0..DEPTH)
            .all(|buffer| net.offer(buffer).is_ok())
            .then_some(net)
    }

    /// Gives the device a buffer for a frame that comes.
    fn offer(&mut self, buffer: usize) -> Result {
        let bytes = &mut *self.received.bytes[buffer];
        // SAFETY: nobody touches the buffer while the device has its token, and it stays where it is.
        let token = unsafe { self.driver.receive_begin(bytes) }?;
        self.received.tokens[buffer] = Some(token);
        Ok(())
    }

    /// Its INTID.
    pub fn intid(&self) -> u32 {
        self.device.intid
    }

    /// Its address.
    pub fn mac(&self) -> [u8; 6] {
        self.driver.mac_address()
    }

    /// Number of things that a device that is whole does not do: frames longer than their buffers, or shorter than their header, and
    /// buffers that it did not have.
    pub fn broken(&self) -> u64 {
        self.broken
    }

    /// Takes back what was sent, and says whether there is a place for another frame.
    pub fn can_send(&mut self) -> bool {
        while let Some(token) = self.driver.poll_transmit() {
            let Some(buffer) = self.sent.of_token(token) else {
                self.broken += 1;
                return false;
            };
            let bytes = &self.sent.bytes[buffer][..self.sent.lengths[buffer]];
            // SAFETY: they are the bytes with which the transmission with this token was begun.
            let done = unsafe { self.driver.transmit_complete(token, bytes) };
            self.broken += u64::from(done.is_err());
            self.sent.tokens[buffer] = None;
        }
        self.sent.free().is_some()
    }

    /// Sends a frame of `bytes` bytes that `fill` writes. Returns whether there was a place for it.
    pub fn send(&mut self, bytes: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        if !self.can_send() {
            return false;
        }
        let Some(buffer) = self.sent.free() else {
            return false;
        };
        let place = &mut *self.sent.bytes[buffer];
        let Ok(header) = self.driver.fill_buffer_header(place) else {
            return false;
        };
        fill(&mut place[header..][..bytes]);
        let whole = &place[..header + bytes];
        // SAFETY: nobody touches the buffer while the device has its token, and it stays where it is.
        let token = unsafe { self.driver.transmit_begin(whole) };
        self.sent.lengths[buffer] = whole.len();
        self.sent.tokens[buffer] = token.ok();
        token.is_ok()
    }

    /// Whether a frame has come.
    pub fn has_received(&self) -> bool {
        self.driver.poll_receive().is_some()
    }

    /// Takes the next frame that has come into `frame`, and returns its length.
    pub fn receive(&mut self, frame: &mut [u8; LONGEST]) -> Option<usize> {
        let copy = |content: &[u8]| {
            let bytes = content.len();
            frame.get_mut(..bytes)?.copy_from_slice(content);
            Some(bytes)
        };
        let there = self.look(copy)?;
        self.broken += u64::from(there.is_none());
        Some(there.unwrap_or(0))
    }

    /// Takes the next frame that has come, at which `look` looks where it is.
    pub fn look<T>(&mut self, look: impl FnOnce(&[u8]) -> Option<T>) -> Option<Option<T>> {
        let token = self.driver.poll_receive()?;
        let Some(buffer) = self.received.of_token(token) else {
            self.broken += 1;
            return None;
        };
        let bytes = &mut *self.received.bytes[buffer];
        // SAFETY: it is the buffer with which the reception with this token was begun.
        let received = unsafe { self.driver.receive_complete(token, bytes) };
        self.received.tokens[buffer] = None;
        let content = received.ok().and_then(|(header, bytes)| {
            let whole = &self.received.bytes[buffer];
            whole.get(header..)?.get(..bytes)
        });
        let seen = content.and_then(look);
        let offered = self.offer(buffer);
        self.broken += u64::from(offered.is_err());
        Some(seen)
    }

    /// Acknowledges its interrupt. Returns whether it had one.
    pub fn acknowledge(&mut self) -> bool {
        !self.driver.ack_interrupt().is_empty()
    }
}
