//! A virtio disk with several requests in flight.

use super::{Machine, PAGE, Registers, registers, take};
use crate::board::Device;
use core::array::from_fn;
use core::slice;
use virtio_drivers::device::blk::{BlkReq, BlkResp, SECTOR_SIZE, VirtIOBlk};
use virtio_drivers::transport::Transport;
use virtio_drivers::{Error, Result};

/// Most requests in flight: the crate's queue has 16 descriptors, and a request three.
pub const DEPTH: usize = 5;
/// Most bytes of a request.
pub const LONGEST: usize = 32 << 10;
/// Bytes of a sector.
pub const SECTOR: usize = SECTOR_SIZE;

/// VIRTIO_BLK_F_SIZE_MAX, and where the config has what it says.
const SIZE_MAX: u64 = 1 << 1;
const SIZE_MAX_AT: usize = 8;

/// A request that the device has.
#[derive(Clone, Copy)]
struct Flight {
    token: u16,
    writes: bool,
    bytes: usize,
}

/// A place for a request. It is never given back: whatever a device does, it finds no other thing there.
struct Place {
    header: &'static mut BlkReq,
    answer: &'static mut BlkResp,
    data: &'static mut [u8],
    flight: Option<Flight>,
}

impl Place {
    fn new() -> Option<Self> {
        let start = take(1 + LONGEST / PAGE)?.as_ptr();
        let header = start.cast::<BlkReq>();
        let answer = start.wrapping_add(PAGE / 2).cast::<BlkResp>();
        let data = start.wrapping_add(PAGE);
        // SAFETY: it is in the page, which nobody else has, and aligned.
        unsafe { header.write(BlkReq::default()) };
        // SAFETY: as above.
        unsafe { answer.write(BlkResp::default()) };
        Some(Self {
            // SAFETY: it has just been written, and the page is never given back.
            header: unsafe { &mut *header },
            // SAFETY: as above.
            answer: unsafe { &mut *answer },
            // SAFETY: the pages behind, which are zero and never given back.
            data: unsafe { slice::from_raw_parts_mut(data, LONGEST) },
            flight: None,
        })
    }
}

/// A disk.
pub struct Disk {
    device: Device,
    driver: VirtIOBlk<Machine, Registers>,
    places: [Place; DEPTH],
    longest: usize,
}

impl Disk {
    /// Resets the device and drives it. `None` if it is no disk, if it cannot be driven, or without memory for its requests.
    pub fn new(device: Device) -> Option<Self> {
        let places = from_fn(|_| Place::new());
        if places.iter().any(Option::is_none) {
            return None;
        }
        // None of them is missing.
        Self::with(device, places.map(|place| place.expect("a place")))
    }

    fn with(device: Device, places: [Place; DEPTH]) -> Option<Self> {
        let mut registers = registers(device)?;
        let limit = if registers.read_device_features() & SIZE_MAX != 0 {
            registers.read_config_space::<u32>(SIZE_MAX_AT).ok()? as usize
        } else {
            LONGEST
        };
        Some(Self {
            device,
            driver: VirtIOBlk::new(registers).ok()?,
            places,
            longest: limit.min(LONGEST) / SECTOR * SECTOR,
        })
    }

    /// Stops the device, whatever it does, and drives it anew. What it had not finished is forgotten.
    pub fn again(self) -> Option<Self> {
        let Self {
            device,
            driver,
            mut places,
            ..
        } = self;
        // Takes the queue from the device, and waits until it is so.
        drop(driver);
        places.iter_mut().for_each(|place| place.flight = None);
        Self::with(device, places)
    }

    /// Its INTID.
    pub fn intid(&self) -> u32 {
        self.device.intid
    }

    /// Its sectors.
    pub fn capacity(&self) -> u64 {
        self.driver.capacity()
    }

    /// Whether it says that it cannot be written.
    pub fn is_read_only(&self) -> bool {
        self.driver.readonly()
    }

    /// Most bytes of a request that it takes, and has a place here.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// A place whose request is not in flight.
    pub fn free(&self) -> Option<usize> {
        self.places.iter().position(|place| place.flight.is_none())
    }

    /// The bytes of a place. Panics if its request is in flight.
    pub fn data(&mut self, place: usize) -> &mut [u8] {
        let place = &mut self.places[place];
        assert!(place.flight.is_none(), "the device has the request");
        place.data
    }

    /// Gives the device a request to read `bytes` bytes into a free place.
    pub fn begin_read(&mut self, place: usize, sector: u64, bytes: usize) -> Result {
        self.begin(place, sector, bytes, false)
    }

    /// Gives the device a request to write the first `bytes` bytes of a free place.
    pub fn begin_write(&mut self, place: usize, sector: u64, bytes: usize) -> Result {
        self.begin(place, sector, bytes, true)
    }

    fn begin(&mut self, place: usize, sector: u64, bytes: usize, writes: bool) -> Result {
        let place = &mut self.places[place];
        assert!(place.flight.is_none(), "the device has the request");
        let data = &mut place.data[..bytes];
        *place.answer = BlkResp::default();
        let sector = sector as usize;
        let token = if writes {
            // SAFETY: nobody touches the place while its request is in flight, and it stays where it is.
            unsafe {
                self.driver
                    .write_blocks_nb(sector, place.header, data, place.answer)
            }
        } else {
            // SAFETY: as above.
            unsafe {
                self.driver
                    .read_blocks_nb(sector, place.header, data, place.answer)
            }
        }?;
        place.flight = Some(Flight {
            token,
            writes,
            bytes,
        });
        Ok(())
    }

    /// Whether a request is finished.
    pub fn has_finished(&mut self) -> bool {
        self.driver.peek_used().is_some()
    }

    /// Takes back a request that is finished: its place, and what became of it. A request that the device did not have is
    /// an error of place [`DEPTH`].
    pub fn finish(&mut self) -> Option<(usize, Result)> {
        let token = self.driver.peek_used()?;
        let is_it = |place: &Place| place.flight.is_some_and(|flight| flight.token == token);
        let Some(number) = self.places.iter().position(is_it) else {
            return Some((DEPTH, Err(Error::WrongToken)));
        };
        let place = &mut self.places[number];
        let flight = place.flight.take()?;
        let data = &mut place.data[..flight.bytes];
        let result = if flight.writes {
            // SAFETY: they are what the request with this token was begun with.
            unsafe {
                self.driver
                    .complete_write_blocks(token, place.header, data, place.answer)
            }
        } else {
            // SAFETY: as above.
            unsafe {
                self.driver
                    .complete_read_blocks(token, place.header, data, place.answer)
            }
        };
        Some((number, result))
    }

    /// Makes durable what was written. Nothing is in flight; the CPU does not sleep meanwhile.
    pub fn flush(&mut self) -> Result {
        assert!(self.places.iter().all(|place| place.flight.is_none()));
        self.driver.flush()
    }

    /// Reads its name, with zeros behind it. Nothing is in flight; the CPU does not sleep meanwhile.
    pub fn name(&mut self) -> Result<[u8; 20]> {
        assert!(self.places.iter().all(|place| place.flight.is_none()));
        let mut name = [0; 20];
        self.driver.device_id(&mut name)?;
        Ok(name)
    }

    /// Acknowledges its interrupt. Returns whether it had one.
    pub fn acknowledge(&mut self) -> bool {
        !self.driver.ack_interrupt().is_empty()
    }
}
