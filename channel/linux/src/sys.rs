//! What the compiler cannot check: maps of memory that another VM has, too, two system calls of GPIO lines, and a barrier.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::AtomicU64;

use rustix::ioctl::{Opcode, Setter, Updater, ioctl, opcode};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::node::Range;

/// Memory of a channel in this process, for as long as it lives.
#[derive(Debug)]
pub struct Map {
    words: NonNull<AtomicU64>,
    bytes: usize,
}

// SAFETY: a map belongs to the process, not to a thread, and is reached as atomics only.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps a range of a file, to be read, and written if it is this end's own.
    pub fn new(file: impl AsFd, range: Range, own: bool) -> io::Result<Self> {
        let rights = if own {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        let shared = MapFlags::SHARED;
        // SAFETY: the kernel chooses where, so that it takes the place of nothing else.
        let map = unsafe {
            mmap(
                ptr::null_mut(),
                range.bytes,
                rights,
                shared,
                file,
                range.start,
            )
        }?;
        let words = NonNull::new(map.cast()).ok_or(io::ErrorKind::InvalidData)?;
        let bytes = range.bytes;
        Ok(Self { words, bytes })
    }

    /// Its words. Of a map that is not this end's own nothing may be stored: `bulkhead_channel` does not.
    pub fn words(&self) -> &[AtomicU64] {
        let words = self.bytes / size_of::<AtomicU64>();
        // SAFETY: so many words are mapped at a page's start until `self` is dropped. What others do to them at the same time atomics
        // allow, and any bytes are one. Loads of 64 bits are single instructions on this architecture, also where stores fault.
        unsafe { slice::from_raw_parts(self.words.as_ptr(), words) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `new` with this length, and nobody has a reference into it any more. A failure leaves it mapped.
        let _ = unsafe { munmap(self.words.as_ptr().cast(), self.bytes) };
    }
}

/// `struct gpio_v2_line_request` of Linux (include/uapi/linux/gpio.h).
#[repr(C)]
struct LineRequest {
    offsets: [u32; 64],
    consumer: [u8; 32],
    flags: u64,
    attributes: u32,
    padding: [u32; 5],
    /// Ten of 24 bytes.
    attribute: [u64; 30],
    lines: u32,
    buffer: u32,
    more_padding: [u32; 5],
    file: i32,
}

/// `struct gpio_v2_line_values`.
#[repr(C)]
struct LineValues {
    bits: u64,
    mask: u64,
}

/// `GPIO_V2_GET_LINE_IOCTL`
const GET_LINE: Opcode = opcode::read_write::<LineRequest>(0xb4, 0x07);
/// `GPIO_V2_LINE_SET_VALUES_IOCTL`
const SET_VALUES: Opcode = opcode::read_write::<LineValues>(0xb4, 0x0f);
/// `GPIO_V2_LINE_FLAG_OUTPUT`
const OUTPUT: u64 = 1 << 3;

/// Requests the first line of a GPIO controller, as an output that is 0.
pub fn request_line(chip: impl AsFd) -> io::Result<OwnedFd> {
    let mut request = LineRequest {
        offsets: [0; 64],
        consumer: [0; 32],
        flags: OUTPUT,
        attributes: 0,
        padding: [0; 5],
        attribute: [0; 30],
        lines: 1,
        buffer: 0,
        more_padding: [0; 5],
        file: -1,
    };
    let name = b"bulkhead channel";
    request.consumer[..name.len()].copy_from_slice(name);
    // SAFETY: the opcode has the size of the structure in it, and changes numbers of it only.
    let call = unsafe { Updater::<GET_LINE, _>::new(&mut request) };
    // SAFETY: as above.
    unsafe { ioctl(chip, call) }?;
    if request.file < 0 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: the kernel has just opened it for this request.
    Ok(unsafe { OwnedFd::from_raw_fd(request.file) })
}

/// Writes 1 to a line that was requested.
pub fn set_line(line: impl AsFd) -> io::Result<()> {
    let values = LineValues { bits: 1, mask: 1 };
    // SAFETY: the opcode has the size of the structure in it, of which the kernel writes nothing back.
    let call = unsafe { Setter::<SET_VALUES, _>::new(values) };
    // SAFETY: as above.
    unsafe { ioctl(line, call) }?;
    Ok(())
}

/// What was stored is in memory before anything that follows, a write to a device by the kernel included.
pub fn stores_before_ring() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes neither memory nor registers.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_sizes_of_the_kernels() {
        assert_eq!(size_of::<LineRequest>(), 592);
        assert_eq!(size_of::<LineValues>(), 16);
    }

    #[test]
    fn a_file_that_is_no_gpio_controller_has_no_line() {
        let file = tempfile::tempfile().expect("a file");
        assert!(request_line(&file).is_err());
        assert!(set_line(&file).is_err());
    }
}
