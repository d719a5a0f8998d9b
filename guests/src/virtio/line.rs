//! A virtio console: port 0, with one buffer in flight in each direction. The crate's own driver for it needs a heap; its virtqueues do not.

use super::{Machine, PAGE, Registers, registers, take};
use crate::board::Device;
use core::slice;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::{DeviceStatus, Transport};
use virtio_drivers::{Error, Result};

const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;
const ENTRIES: usize = 4;
/// Most bytes of a batch.
pub const BATCH: usize = PAGE;

type Queue = VirtQueue<Machine, ENTRIES>;

/// A console.
pub struct SerialConsole {
    device: Device,
    transport: Registers,
    receive: Queue,
    transmit: Queue,
    /// What the device writes to, and reads. They are never given back: whatever a device does, it finds no other thing there.
    input: &'static mut [u8],
    output: &'static mut [u8],
    waits: Option<u16>,
    /// Buffers of the batch that the device has.
    sends: Option<(u16, usize)>,
}

impl SerialConsole {
    /// Resets the device and drives it. `None` if it cannot be driven, or without memory.
    pub fn new(device: Device) -> Option<Self> {
        let page = || {
            let start = take(1)?.as_ptr();
            // SAFETY: the page is nobody else's, zero, and never given back.
            Some(unsafe { slice::from_raw_parts_mut(start, PAGE) })
        };
        Self::with(device, page()?, page()?)
    }

    fn with(device: Device, input: &'static mut [u8], output: &'static mut [u8]) -> Option<Self> {
        let mut transport = registers(device)?;
        // VERSION_1, EVENT_IDX.
        transport.set_status(DeviceStatus::empty());
        transport.set_status(DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER);
        let features = transport.read_device_features() & (1 << 32 | 1 << 29);
        transport.write_driver_features(features);
        let status = DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER | DeviceStatus::FEATURES_OK;
        transport.set_status(status);
        let events = features & 1 << 29 != 0;
        let receive = Queue::new(&mut transport, RECEIVE, false, events).ok()?;
        let transmit = Queue::new(&mut transport, TRANSMIT, false, events).ok()?;
        transport.set_status(status | DeviceStatus::DRIVER_OK);
        let mut line = Self {
            device,
            transport,
            receive,
            transmit,
            input,
            output,
            waits: None,
            sends: None,
        };
        line.offer().ok()?;
        Some(line)
    }

    /// Stops the device, and drives it anew.
    pub fn again(self) -> Option<Self> {
        let Self {
            device,
            transport,
            input,
            output,
            ..
        } = self;
        // Resets it.
        drop(transport);
        Self::with(device, input, output)
    }

    /// Its INTID.
    pub fn intid(&self) -> u32 {
        self.device.intid
    }

    /// Whether it says that it cannot go on.
    pub fn has_failed(&self) -> bool {
        self.transport
            .get_status()
            .contains(DeviceStatus::DEVICE_NEEDS_RESET)
    }

    /// Gives the device the buffer for input.
    fn offer(&mut self) -> Result {
        // SAFETY: nobody touches the buffer while the device has it, and it stays where it is.
        let token = unsafe { self.receive.add(&[], &mut [&mut *self.input]) }?;
        self.waits = Some(token);
        if self.receive.should_notify() {
            self.transport.notify(RECEIVE);
        }
        Ok(())
    }

    /// Sends a batch that `fill` writes, as one chain of `pieces` buffers. [`Self::is_sent`] says when the device has read it.
    pub fn send(&mut self, bytes: usize, pieces: usize, fill: impl FnOnce(&mut [u8])) -> Result {
        if self.sends.is_some() || bytes == 0 || !(1..=ENTRIES).contains(&pieces) {
            return Err(Error::InvalidParam);
        }
        fill(self.output.get_mut(..bytes).ok_or(Error::InvalidParam)?);
        let token = with_pieces(&self.output[..bytes], pieces, |buffers| {
            // SAFETY: nobody touches the buffer while the device has it, and it stays where it is.
            unsafe { self.transmit.add(buffers, &mut []) }
        })?;
        self.sends = Some((token, bytes | pieces << 32));
        if self.transmit.should_notify() {
            self.transport.notify(TRANSMIT);
        }
        Ok(())
    }

    /// Sends bytes that the VM does not have.
    pub fn send_nothing(&mut self) -> Result {
        let nowhere = core::ptr::with_exposed_provenance::<u8>(0x3000_0000);
        // SAFETY: only its address and its length are used.
        let buffer = unsafe { slice::from_raw_parts(nowhere, 16) };
        // SAFETY: nobody touches it.
        unsafe { self.transmit.add(&[buffer], &mut []) }?;
        self.transport.notify(TRANSMIT);
        Ok(())
    }

    /// Whether the device has read the batch that was sent last.
    pub fn is_sent(&mut self) -> bool {
        let Some((token, what)) = self.sends else {
            return true;
        };
        if self.transmit.peek_used() != Some(token) {
            return false;
        }
        let (bytes, pieces) = (what & 0xffff_ffff, what >> 32);
        let done = with_pieces(&self.output[..bytes], pieces, |buffers| {
            // SAFETY: the buffers with which the chain was added.
            unsafe { self.transmit.pop_used(token, buffers, &mut []) }
        });
        self.sends = None;
        done.is_ok()
    }

    /// Takes the input that has come into `into`, and returns its length.
    pub fn receive(&mut self, into: &mut [u8; BATCH]) -> Option<usize> {
        let token = self
            .waits
            .filter(|own| self.receive.peek_used() == Some(*own))?;
        // SAFETY: the buffer with which the chain was added.
        let bytes = unsafe { self.receive.pop_used(token, &[], &mut [&mut *self.input]) }.ok()?;
        let bytes = bytes as usize;
        into.get_mut(..bytes)?
            .copy_from_slice(self.input.get(..bytes)?);
        self.offer().ok()?;
        Some(bytes)
    }

    /// Acknowledges its interrupt. Returns whether it had one.
    pub fn acknowledge(&mut self) -> bool {
        !self.transport.ack_interrupt().is_empty()
    }
}

/// Calls `act` with a buffer in so many pieces, the last of which has what does not divide evenly.
fn with_pieces<R>(bytes: &[u8], pieces: usize, act: impl FnOnce(&[&[u8]]) -> R) -> R {
    let each = bytes.len() / pieces;
    let mut all: [&[u8]; ENTRIES] = [&[]; ENTRIES];
    for (number, piece) in all.iter_mut().take(pieces).enumerate() {
        let end = if number + 1 == pieces {
            bytes.len()
        } else {
            (number + 1) * each
        };
        *piece = &bytes[number * each..end];
    }
    act(&all[..pieces])
}
