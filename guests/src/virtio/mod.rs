//! Virtio devices, driven by the crate `virtio-drivers` as it is: what it has to be told about this machine, and around its devices what
//! lets programs use them without `unsafe`.

pub mod disk;
pub mod line;
pub mod net;
pub mod noise;
pub mod port;
pub mod ranges;
pub mod raw;
pub mod reads;

use crate::board::{Board, Device};
use crate::gic;
use crate::mmio::read32;
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering::*};
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};
use virtio_drivers::{BufferDirection, Hal, PhysAddr};

/// The registers of a device.
pub type Registers = MmioTransport<'static>;

/// Bytes of the registers and the config.
const REGISTERS: usize = 0x200;
/// DeviceID (VIRTIO 1.2, 4.2.2).
const DEVICE_ID: usize = 0x008;
const PAGE: usize = virtio_drivers::PAGE_SIZE;
/// Pages for virtqueues and for requests.
const PAGES: usize = 128;

/// The devices of this type, in the order of the device tree. They stay as they are: the crate's own view of the registers
/// resets a device when it goes, and a test of what a former life has left would find nothing.
pub fn devices(board: &Board, kind: DeviceType) -> impl Iterator<Item = Device> {
    let is_of_kind = move |device: &&Device| read32(device.base + DEVICE_ID) == kind as u32;
    board.virtio.iter().filter(is_of_kind).copied()
}

/// As [`devices`], each of them with its interrupt enabled: one that comes before that would be an edge that is lost.
pub fn listen(board: &Board, kind: DeviceType) -> impl Iterator<Item = Device> {
    devices(board, kind).inspect(|device| {
        gic::set_edge(device.intid, true);
        gic::enable(device.intid);
    })
}

/// The registers of a device, if there is one.
pub fn registers(device: Device) -> Option<Registers> {
    let header = core::ptr::with_exposed_provenance_mut::<VirtIOHeader>(device.base);
    // SAFETY: the device tree says that these are the registers of a virtio device; the crate reaches them by plain loads
    // and stores only (I-MMIO).
    unsafe { MmioTransport::new(NonNull::new(header)?, REGISTERS) }.ok()
}

/// The machine as the crate sees it: every address is mapped to itself, and devices see the caches.
pub struct Machine;

#[repr(C, align(4096))]
struct Pages(UnsafeCell<[[u8; PAGE]; PAGES]>);

// SAFETY: a page is touched by who has set its flag in `TAKEN`.
unsafe impl Sync for Pages {}

static ALL: Pages = Pages(UnsafeCell::new([[0; PAGE]; PAGES]));
/// Which of them are taken.
static TAKEN: [AtomicBool; PAGES] = [const { AtomicBool::new(false) }; PAGES];

fn page(number: usize) -> *mut u8 {
    ALL.0.get().cast::<u8>().wrapping_add(number * PAGE)
}

/// Takes pages that follow one another, and gives their start, with zeros in them.
fn take(pages: usize) -> Option<NonNull<u8>> {
    let is_free = |first: &usize| {
        !TAKEN[*first..first + pages]
            .iter()
            .any(|page| page.load(Acquire))
    };
    let first = (0..=PAGES.checked_sub(pages)?).find(is_free)?;
    TAKEN[first..first + pages]
        .iter()
        .for_each(|page| page.store(true, Relaxed));
    let start = page(first);
    // SAFETY: the pages were free, and one CPU alone takes pages.
    unsafe { start.write_bytes(0, pages * PAGE) };
    NonNull::new(start)
}

// SAFETY: the pages are aligned, zeroed, and nobody else's until they are given back. Addresses are the same for the device.
unsafe impl Hal for Machine {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        // The crate takes address 0 for an error.
        take(pages).map_or((0, NonNull::dangling()), |start| {
            (start.addr().get() as u64, start)
        })
    }

    unsafe fn dma_dealloc(_: PhysAddr, start: NonNull<u8>, pages: usize) -> i32 {
        let first = (start.addr().get() - page(0).addr()) / PAGE;
        TAKEN[first..first + pages]
            .iter()
            .for_each(|page| page.store(false, Release));
        0
    }

    unsafe fn mmio_phys_to_virt(address: PhysAddr, _: usize) -> NonNull<u8> {
        // For PCI only, of which no machine here has any.
        NonNull::new(core::ptr::with_exposed_provenance_mut(address as usize))
            .unwrap_or(NonNull::dangling())
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        buffer.cast::<u8>().as_ptr().expose_provenance() as u64
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}
